"""Tasks of Spark, and the messages between driver and tasks."""
