"""What a wheel holds beside the package, as lab/share: notebooks, profiles and studies.

Neither a wheel nor a source distribution holds the solutions of the course.
"""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

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


def clear_solutions(root: Path) -> None:
    """Replace the course's solutions below a folder by what students find in their place."""
    clear = runpy.run_path(str(Path("lab", "course", "solutions.py")))["clear"]
    clear(root / "notebooks" / "lessons")


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
        clear_solutions(Path(self.build_lib, "lab", "share"))


class DistributeSource(sdist):
    """Leaves the solutions out; whoever teaches the course has the repository."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Gather the files, then clear the lessons among them."""
        super().make_release_tree(base_dir, files)
        clear_solutions(Path(base_dir))


setup(cmdclass={"build_py": BuildWithShared, "sdist": DistributeSource})
