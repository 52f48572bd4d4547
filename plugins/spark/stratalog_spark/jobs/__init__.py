"""Jobs on Spark over whole topics. Each job is a function that gets a session and returns a report.

Arguments that several jobs have:

- ``spark``: a session, classic or Connect.
- ``tier``: URI of a tier, or a source with credentials. ``source`` may also be a directory.
- ``topics``: topics that the job reads, with all their partitions; None means all topics.
- ``take_over``: fence the engine that wrote to the tier; use it only after that engine has stopped.
- ``progress``: called with the numbers of completed tasks and of all tasks.

Errors of all jobs that replace segments of a tier:

- ConfigError: ``tier`` is not a tier, or another argument is invalid.
- UnknownTopicError: a topic does not exist.
- FencedEpochError: an engine writes to a topic, or has records that are not in the tier.
- StorageError: another program replaced segments of a log while the job ran. The job did not change this log. Run the
  job again.
- SparkJobError: a task failed; nothing was changed.
"""
