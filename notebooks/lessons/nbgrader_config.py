"""nbgrader's settings for this course: `make release` copies them into the course's folder."""

from lab.course.solutions import CODE_STUB, TEXT_STUB

c = get_config()

c.CourseDirectory.course_id = "scaling-lab"
# What a student finds in place of a solution: the checks then say that there is no answer yet.
c.ClearSolutions.code_stub = {"python": CODE_STUB}
c.ClearSolutions.text_stub = TEXT_STUB
# Seconds that a cell may take: a study that was not handed in with its records is measured again.
c.ExecutePreprocessor.timeout = 1800
# Seconds until a kernel answers, on a machine that grades many at once.
c.ExecutePreprocessor.startup_timeout = 300
# Else nbclient may miss the answer to a cell that measures with a live display, and wait for it until the time above is over.
c.KernelManager.client_factory = "lab.report.client.Client"
# Records are small, logs and figures are not many: what a student hands in may still be larger than nbgrader's default.
c.CourseDirectory.max_dir_size = 200_000
