"""Rung 8: the order of a pipeline's passes: 1F1B, one forward, one backward (Narayanan et al., 2019)."""


def order(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """What a stage does, one after the other: ("forward", 0), ..., ("backward", 0), ...

    Every micro-batch passes forward and backward once, in order. A stage may keep the activations
    of at most `stages - stage` micro-batches, and no stage waits longer than it must.
    """
    passes = []
    ### BEGIN SOLUTION
    ahead = min(stages - stage - 1, micro_batches)
    passes += [("forward", m) for m in range(ahead)]
    for m in range(micro_batches - ahead):
        passes += [("forward", ahead + m), ("backward", m)]
    passes += [("backward", m) for m in range(micro_batches - ahead, micro_batches)]
    ### END SOLUTION
    assert len(passes) == 2 * micro_batches
    return passes
