"""What the scan, the conversion and the verification cost. `python -m benchmarks.run`; see README.md."""
