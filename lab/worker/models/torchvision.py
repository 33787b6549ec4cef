"""Importing torchvision, also beside a torch that its library does not fit."""

from __future__ import annotations

import sys
from types import ModuleType

import torch

# A library lives as long as this keeps it.
_stand_ins: list[torch.library.Library] = []
_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision() -> ModuleType:
    """torchvision with its models.

    Where its compiled library cannot be loaded, as that of a CUDA build beside a CPU-only torch, the import stops at
    operators on boxes that no model here calls. They are declared then, and the import is tried again.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error) or _stand_ins:
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(operator + _BOXES)
        _stand_ins.append(library)
        import torchvision
    import torchvision.models

    module: ModuleType = torchvision
    return module
