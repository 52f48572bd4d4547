"""Parts of benchmarks/spark.py."""
