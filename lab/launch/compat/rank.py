"""`python -m lab.rank` for job scripts of version 0.1.0; newer ones call `lab.launch.job`."""

import sys

from lab.launch.job import main

if __name__ == "__main__":
    sys.exit(main())
