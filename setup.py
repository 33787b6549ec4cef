"""What a wheel holds beside the package, as lab/share: notebooks, profiles and studies."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHARED = (
    "notebooks/*.ipynb",
    "notebooks/lessons/*.*",
    "notebooks/lessons/tables/*",
    "notebooks/lessons/studies/*/study.yaml",
    "notebooks/lessons/studies/*/*.py",
    "notebooks/lessons/projects/*.*",
    "notebooks/lessons/projects/*/*.yaml",
    "notebooks/lessons/projects/studies/fault/study.yaml",
    "reports/*/study.yaml",
    "reports/*/*.py",
    "slurm/*.yaml",
    "docs/tables/*.csv",
)


class BuildWithShared(build_py):
    """Copies what lies beside the package; an editable installation finds it there."""

    def run(self) -> None:
        """Build the package, then add what it shares."""
        super().run()
        if self.editable_mode:
            return
        for pattern in SHARED:
            for path in Path().glob(pattern):
                target = Path(self.build_lib, "lab", "share", path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


setup(cmdclass={"build_py": BuildWithShared})
