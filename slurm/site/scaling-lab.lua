-- A module file of Lmod: `module load scaling-lab`. Put it into a folder of MODULEPATH, and change the first line.
local root = "/shared/scaling-lab"

help("Scaling Lab: how does training scale here, and why? See `lab --help`.")
whatis("Name: scaling-lab")
prepend_path("PATH", pathJoin(root, "venv/bin"))
setenv("LAB_CACHE", pathJoin(root, "cache"))
