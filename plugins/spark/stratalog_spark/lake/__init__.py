"""Topics as tables of a lake: streams that keep an Iceberg or Delta table in step with a topic."""
