"""Who runs which run where: `folder` claims and reads run folders, `worker` trains claimed cells in one process,
`local` starts workers on this machine and watches them;
`environment` and `allocator` set a training process up, `calibration` times a few shapes of a grid."""
