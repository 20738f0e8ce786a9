"""The old ways of serving, to compare with: they use the core, the core does not know them."""
