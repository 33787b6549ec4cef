"""Rung 8: a pipeline's passes in the order 1F1B (Narayanan et al., 2019): one forward, one backward."""


def order(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """The passes of a stage, one after the other: ("forward", 0), ..., ("backward", 0), ...

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
