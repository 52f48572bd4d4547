"""What benchmarks/spark.py is made of."""
