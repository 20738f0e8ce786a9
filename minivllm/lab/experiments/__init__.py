"""The published figures as runs: each module holds one experiment, all by `minivllm lab --all`."""
