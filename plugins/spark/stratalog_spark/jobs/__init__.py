"""Jobs on Spark over whole topics. Each job is a function that gets a session and returns a report."""
