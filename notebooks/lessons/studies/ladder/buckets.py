"""Rung 5: like hooks.py, but several gradients share a call, so latency is paid less often."""

import torch
from torch import distributed as dist
from torch import nn

from lab.worker.strategies.base import Setup, Strategy, Wrapper


class Bucketed(Wrapper):
    """A model whose gradients leave in buckets of at least `bucket_bytes`; the last may be smaller."""

    def __init__(self, model: nn.Module, bucket_bytes: int) -> None:
        super().__init__(model)
        self.bucket_bytes = bucket_bytes
        self.filling = []  # gradients that wait until the bucket is full
        self.sent = []  # for each bucket under way, what is needed to wait for it and unpack it
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.ready)

    def ready(self, parameter: nn.Parameter) -> None:
        """Put a gradient into the bucket, and send the bucket if it is full."""
        assert parameter.grad is not None
        ### BEGIN SOLUTION
        self.filling.append(parameter.grad)
        if sum(gradient.nbytes for gradient in self.filling) >= self.bucket_bytes:
            self.send()
        ### END SOLUTION

    def send(self) -> None:
        """Begin to average the bucket in one call, and do not wait for it."""
        ### BEGIN SOLUTION
        flat = torch.cat([gradient.flatten() for gradient in self.filling])
        flat /= dist.get_world_size()
        self.sent.append((dist.all_reduce(flat, async_op=True), flat, self.filling))
        self.filling = []
        ### END SOLUTION


class BucketedDDP(Strategy):
    """What torch's DDP does, without its C++."""

    def __init__(self, bucket_bytes: int = 1 << 20) -> None:
        self.bucket_bytes = bucket_bytes

    def wrap(self, model: nn.Module, setup: Setup) -> Bucketed:
        """All ranks begin with the parameters of rank 0."""
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        return Bucketed(model, self.bucket_bytes)

    def synchronize(self, parallel: Bucketed) -> None:
        """After the backward pass: send what is left, wait for all, and unpack the gradients."""
        ### BEGIN SOLUTION
        if parallel.filling:
            parallel.send()
        for work, flat, gradients in parallel.sent:
            work.wait()
            parts = flat.split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        parallel.sent.clear()
        ### END SOLUTION
        assert not parallel.sent, "what was sent in this step must not be waited for in the next"
        assert not parallel.filling, "a gradient was left behind"
