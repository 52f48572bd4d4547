"""Topics as tables of a data lake: streams that keep an Iceberg or Delta table up to date with a topic."""
