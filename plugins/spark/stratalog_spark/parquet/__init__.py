"""Parquet files, and the parsing of values for them."""
