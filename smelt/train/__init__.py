"""A RunSpec and a corpus -> trained weights and one row.

The rooms: `schedule` says the rate of a step, `step` holds the state and the jitted step, `evaluate` the validation
losses, `checkpoint` the weights on disk, `fingerprint` what a result depends on beside its spec, `row` what is written
of it, `run` the run.
"""
