"""What is run and measured: benchmarks, and the paper's experiment."""
