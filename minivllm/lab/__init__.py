"""Experiments on the engine: workloads, measurements, the benchmark and the demo."""
