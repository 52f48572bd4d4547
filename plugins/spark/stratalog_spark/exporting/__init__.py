"""Export of topics to Parquet, and import of such an export."""
