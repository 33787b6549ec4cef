"""Output of nccl-tests, the OSU micro-benchmarks and the Intel MPI Benchmarks: collectives by the
size of messages."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence

from lab.analysis.audit.formats.grid import NUMERAL, Table
from lab.errors import InputError

DEVICE = re.compile(r"#?\s*Rank\s+(\d+)\s.*\son\s+(\S+)\s+device\s+\d+\s+\[[\w:.]+\]\s+(.+?)\s*$")
HEADER = re.compile(r"^[#\s]*size\s+count\s+type\b.*\btime\s+algbw\s+busbw\b")
# A size, a count, a type, an operation or "none", the root, and what was measured.
ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w+\s+[a-z]\w*(?:\s+-?\d+)?(?:\s+[\d.]+){3}\s+\S+")
COMMAND = re.compile(r"^(?P<launcher>.*?)(?<![\w.-])[\w./-]*[a-z]_perf (?P<options>.*-b .*)")
LAUNCHER = re.compile(r"\b(?:mpirun|mpiexec|srun|orterun|prun)")
OF_A_PROCESS = re.compile(r"(?:^|\s)(?:-[gt]|--ngpus|--nthreads)[ =]?(\d{1,4})(?=\s|$)")
SAVED = re.compile(  # as CSV
    r"size,count,type(,redop)?(,root)?(,time,algbw,busbw,#?(wrong|error)){1,2}", re.IGNORECASE
)
ITERATIONS = re.compile(r"(?<!warmup )\biters:\s*(\d+)")
MEASURED = 4  # time, algbw, busbw, errors
IN_BOTH = 12  # cells of a row, at least, if it was measured both out of place and in place
FEWEST = 2  # rows that are taken for output without its header
DIGIT = 0.005  # half of the last one printed of a bandwidth
NCCL_COLUMNS = [
    *("message_bytes", "variant", "time_us", "algbw_gb_per_s", "busbw_gb_per_s"),
    *("gpus", "nodes", "gpu_name", "repeats"),
]
OSU_TITLE = re.compile(
    r"[#\s]*OSU MPI\S*\s+(?:(.+?)\s+Latency|(.*?Bandwidth(?: / Message Rate)?))\s+Test"
)
# Of a collective: an average over its ranks. Point to point there is one latency.
OSU_HEADER = re.compile(
    r"[#\s]*Size\s+(?:Avg Latency\s*\(us\)|(?P<bandwidth>Bandwidth\s*\(MB/s\)|MB/s))"
)
RANKS = re.compile(r"(?:^|\s)(?:-n|-np|--np|--ntasks)[ =]?(\d{1,7})(?=\s|$)")
NODES = re.compile(r"(?:^|\s)(?:-N|--nodes)[ =]?(\d{1,6})(?=\s|$)")
OF_A_NODE = re.compile(r"(?:^|\s)--n?tasks-per-node[ =](\d{1,5})(?=\s|$)")
MPI_COLUMNS = ["message_bytes", "strategy", "time_us", "algbw_mb_per_s", "ranks", "repeats"]
IMB_TITLE = re.compile(r"#?\s*Benchmarking\s+([A-Z]\w+)")
IMB_MODE = re.compile(r"#\s*MODE:\s*(\S+)")
IMB_RANKS = re.compile(r"#?\s*#processes\s*=\s*(\d+)")
IMB_HEADER = re.compile(r"#?\s*#bytes\s+#repetitions\s+\S")
IMB_TIMES = ("t_max[usec]", "t[usec]", "t_pure[usec]")  # of the slowest rank, if it is given
WITH_RANGE = 5  # size, average, minimum, maximum, iterations


def find_collectives(lines: Sequence[str], source: str) -> Table | None:
    """What one of these benchmarks printed; None for other lines.

    Raises InputError, which names `source`, if nccl-tests printed no size.
    """
    as_printed = _printed(lines)
    unheaded = sum(map(bool, map(ROW.match, lines)))
    if unheaded >= FEWEST or any(map(HEADER.match, as_printed)):
        return Table(NCCL_COLUMNS, _of_nccl_tests(as_printed, source))
    titled = any(map(OSU_TITLE.match, lines)) and any(map(OSU_HEADER.match, lines))
    if titled and (rows := _of_osu(lines)):
        return Table(MPI_COLUMNS, rows)
    return Table(MPI_COLUMNS, rows) if (rows := _of_imb(lines)) else None


def _of_nccl_tests(lines: Sequence[str], source: str) -> list[list[str]]:
    """A row for each size, out of place and in place, with the facts of the devices."""
    # Independent programs all list a rank 0: each measured a single rank.
    devices = [match.groups() for line in lines if (match := DEVICE.match(line))]
    ranks, hosts, gpus = ({device[place] for device in devices} for place in range(3))
    iterations = next((match[1] for line in lines if (match := ITERATIONS.search(line))), "")
    facts = [str(len(ranks) or ""), str(len(hosts) or ""), ", ".join(sorted(gpus)), iterations]
    header = next((line for line in lines if HEADER.match(line)), "")
    rows = []
    for cells in map(str.split, lines):
        both = header.count("algbw") > 1 if header else len(cells) >= IN_BOTH
        variants = ("out-of-place", "in-place")[: 1 + both]
        if cells and cells[0].isdigit() and len(cells) > len(variants) * MEASURED:
            first = len(cells) - len(variants) * MEASURED
            for place, variant in enumerate(variants):
                measured = cells[first + place * MEASURED :][:MEASURED]
                if measured[0] != "N/A":
                    rows.append([cells[0], variant, *measured[:3]])
    if not rows:
        raise InputError.of(source, "file", "nccl-tests printed no sizes", "give all of its output")
    facts[0] = facts[0] or _ranks_of_command(lines) or _ranks_by_bandwidths(rows)
    return [row + facts for row in rows]


def _printed(lines: Sequence[str]) -> Sequence[str]:
    """Lines with spaces between columns, also if they were saved as CSV."""
    saved = any(SAVED.fullmatch(line.replace(" ", "")) for line in lines)
    return [line.replace(",", " ") for line in lines] if saved else lines


def _ranks_of_command(lines: Sequence[str]) -> str:
    """The ranks of the command that is shown: its processes, times their threads and GPUs; "" if
    it does not say, or several commands differ."""
    numbers = set()
    for command in "\n".join(lines).replace("\\\n", " ").splitlines():
        if match := COMMAND.search(command):
            launched = LAUNCHER.search(match["launcher"])
            processes = _ranks_started(match["launcher"]) if launched else "1"
            each = [int(number) for number in OF_A_PROCESS.findall(match["options"])]
            numbers.add(int(processes) * math.prod(each) if processes else 0)
    ranks = numbers.pop() if len(numbers) == 1 else 0
    return str(ranks) if ranks > 1 else ""


def _ranks_by_bandwidths(rows: Sequence[Sequence[str]]) -> str:
    """The ranks that follow from algbw and busbw in the fastest row; "" if several numbers fit."""
    with contextlib.suppress(ValueError, ZeroDivisionError):
        algorithm, bus = max((float(row[3]), float(row[4])) for row in rows)
        ratios = (bus - DIGIT) / (algorithm + DIGIT), (bus + DIGIT) / (algorithm - DIGIT)
        # The factor 2(n-1)/n of an all-reduce is above 1, (n-1)/n of a gather or scatter is below.
        all_reduced = ratios[0] > 1
        least, most = (2 / (2 - ratio) if all_reduced else 1 / (1 - ratio) for ratio in ratios)
        whole = range(math.ceil(least), math.floor(most) + 1)
        if 1 < least <= most and len(whole) == 1:
            return str(whole[0])
    return ""


def _of_osu(lines: Sequence[str]) -> list[list[str]]:
    """A row for each size; the ranks are those of the command above, if it is shown."""
    rows, name, ranks = [], "", ""
    header: re.Match[str] | None = None
    for line in lines:
        cells = line.split()
        numeric = bool(cells) and all(map(NUMERAL.fullmatch, cells))
        if title := OSU_TITLE.match(line):
            name, header = title[1] or title[2], None
        elif match := OSU_HEADER.match(line):
            header = match
        elif header and numeric and len(cells) > 1:
            repeats = cells[4] if len(cells) >= WITH_RANGE else ""
            measured = ["", cells[1]] if header["bandwidth"] else [cells[1], ""]
            rows.append([cells[0], name, *measured, ranks, repeats])
        elif cells:
            header, ranks = None, _ranks_started(line) or ranks
    return rows


def _of_imb(lines: Sequence[str]) -> list[list[str]]:
    """A row for each size, with the time of the slowest rank."""
    rows, name, mode, ranks = [], "", "", ""
    header: list[str] = []
    for line in lines:
        cells = line.split()
        if title := IMB_TITLE.match(line):
            name, mode, ranks, header = title[1], "", "", []
        elif IMB_HEADER.match(line):
            header = line.strip().removeprefix("# ").split()
        elif match := IMB_RANKS.match(line):
            ranks = match[1]
        elif match := IMB_MODE.match(line):
            mode = f" {match[1].lower()}"
        elif header and len(cells) >= len(header) and all(map(NUMERAL.fullmatch, cells[:3])):
            time = next((cells[header.index(each)] for each in IMB_TIMES if each in header), "")
            rows.append([cells[0], name + mode, time, "", ranks, cells[1]])
    return rows


def _ranks_started(command: str) -> str:
    """The number of ranks that a command line starts, "" if it does not say."""
    if match := RANKS.search(command):
        return match[1]
    nodes, each = NODES.search(command), OF_A_NODE.search(command)
    return str(int(nodes[1]) * int(each[1])) if nodes and each else ""
