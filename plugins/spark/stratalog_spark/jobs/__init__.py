"""Whole jobs on Spark, each a function that takes a session and gives a summary."""
