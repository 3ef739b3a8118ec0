"""A grid's cells -> their runs, claimed and trained by processes of this and other machines.

`folder` claims and reads run folders, `worker` trains claimed cells in one process, `local` starts workers on this
machine and watches them; `environment` and `allocator` set a training process up, `calibration` times a few shapes of
a grid."""
