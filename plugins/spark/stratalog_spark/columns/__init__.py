"""Columns of rows, and the predicates and counts that are pushed down to them."""
