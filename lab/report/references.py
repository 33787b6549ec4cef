"""Numbers of figures, tables and references, the citations of them, and the bibliography."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lab.config.models import CNN, DistilBERT, PythonModel
from lab.config.own import Script
from lab.config.run import Run

if TYPE_CHECKING:  # a report's kernel cites, and edits no page
    from bs4 import BeautifulSoup

# A label begins with one of these, as in Quarto.
KINDS = {"fig-": "Figure", "tbl-": "Table"}
REFERENCE = "ref-"


# By label, in Markdown.
BIBLIOGRAPHY = {
    "ref-amdahl": "G. M. Amdahl. Validity of the single processor approach to achieving large "
    "scale computing capabilities. *AFIPS Spring Joint Computer Conference*, 483–485, 1967.",
    "ref-gustafson": "J. L. Gustafson. Reevaluating Amdahl's law. *Communications of the ACM* "
    "31(5), 532–533, 1988.",
    "ref-karp": "A. H. Karp, H. P. Flatt. Measuring parallel processor performance. "
    "*Communications of the ACM* 33(5), 539–543, 1990.",
    "ref-hockney": "R. W. Hockney. The communication challenge for MPP: Intel Paragon and Meiko "
    "CS-2. *Parallel Computing* 20(3), 389–398, 1994.",
    "ref-patarasuk": "P. Patarasuk, X. Yuan. Bandwidth optimal all-reduce algorithms for clusters "
    "of workstations. *Journal of Parallel and Distributed Computing* 69(2), 117–124, 2009.",
    "ref-efron": "B. Efron. Bootstrap methods: another look at the jackknife. *The Annals of "
    "Statistics* 7(1), 1–26, 1979.",
    "ref-hettmansperger": "T. P. Hettmansperger, S. J. Sheather. Confidence intervals based on "
    "interpolated order statistics. *Statistics & Probability Letters* 4(2), 75–79, 1986.",
    "ref-wilson": "E. B. Wilson. Probable inference, the law of succession, and statistical "
    "inference. *Journal of the American Statistical Association* 22(158), 209–212, 1927.",
    "ref-hoefler": "T. Hoefler, R. Belli. Scientific benchmarking of parallel computing systems. "
    "*SC15*, 2015.",
    "ref-williams": "S. Williams, A. Waterman, D. Patterson. Roofline: an insightful visual "
    "performance model for multicore architectures. *Communications of the ACM* 52(4), 65–76, "
    "2009.",
    "ref-ddp": "S. Li et al. PyTorch Distributed: experiences on accelerating data parallel "
    "training. *Proceedings of the VLDB Endowment* 13(12), 3005–3018, 2020.",
    "ref-zero": "S. Rajbhandari, J. Rasley, O. Ruwase, Y. He. ZeRO: memory optimizations toward "
    "training trillion parameter models. *SC20*, 2020.",
    "ref-fsdp": "Y. Zhao et al. PyTorch FSDP: experiences on scaling fully sharded data parallel. "
    "*Proceedings of the VLDB Endowment* 16(12), 3848–3860, 2023.",
    "ref-megatron": "M. Shoeybi et al. Megatron-LM: training multi-billion parameter language "
    "models using model parallelism. arXiv:1909.08053, 2019.",
    "ref-gpipe": "Y. Huang et al. GPipe: efficient training of giant neural networks using "
    "pipeline parallelism. *NeurIPS*, 2019.",
    "ref-powersgd": "T. Vogels, S. P. Karimireddy, M. Jaggi. PowerSGD: practical low-rank gradient "
    "compression for distributed optimization. *NeurIPS*, 2019.",
    "ref-transformer": "A. Vaswani et al. Attention is all you need. *NeurIPS*, 2017.",
    "ref-gpt2": "A. Radford et al. Language models are unsupervised multitask learners. OpenAI, "
    "2019.",
    "ref-distilbert": "V. Sanh, L. Debut, J. Chaumond, T. Wolf. DistilBERT, a distilled version of "
    "BERT: smaller, faster, cheaper and lighter. arXiv:1910.01108, 2019.",
    "ref-agnews": "X. Zhang, J. Zhao, Y. LeCun. Character-level convolutional networks for text "
    "classification. *NeurIPS*, 2015.",
    "ref-imdb": "A. L. Maas et al. Learning word vectors for sentiment analysis. *ACL*, 142–150, "
    "2011.",
    "ref-mnist": "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-based learning applied to "
    "document recognition. *Proceedings of the IEEE* 86(11), 2278–2324, 1998.",
    "ref-digits": "E. Alpaydin, C. Kaynak. Optical recognition of handwritten digits. UCI Machine "
    "Learning Repository, 1998.",
    "ref-shakespeare": "A. Karpathy. The unreasonable effectiveness of recurrent neural networks "
    "(the data set Tiny Shakespeare). 2015.",
}
# Terms in the report's sentences, and their sources.
TERMS = {
    "Amdahl's law": "ref-amdahl",
    "Gustafson's law": "ref-gustafson",
    "Gustafson's serial fraction": "ref-gustafson",
    "Karp and Flatt's serial fraction": "ref-karp",
    "order statistics": "ref-hettmansperger",
    "bootstrap intervals": "ref-efron",
    "rules for benchmarks of parallel machines": "ref-hoefler",
    "alpha-beta model": "ref-hockney",
    "ring all-reduce": "ref-patarasuk",
    "Wilson's interval": "ref-wilson",
    "roofline": "ref-williams",
    "PowerSGD": "ref-powersgd",
}
# Patterns of the discussion's sentences, in Markdown, and the figures and tables that show them.
SHOWN = {
    "the spread of the repeats": ("fig-overview", "tbl-speedup"),
    "to show how much this varies": ("fig-overview", "tbl-speedup"),
    r"a step takes [^;\n]* where [^;\n]*": ("fig-waterfall", "tbl-waterfall"),
    r"R = T\\_compute / T\\_communication": ("fig-overlap-band",),
}
# The source of each strategy, data set and setting; for others there is nothing to cite.
STRATEGIES = {
    "ddp": "ref-ddp",
    "zero1": "ref-zero",
    "fsdp": "ref-fsdp",
    "tensor_parallel": "ref-megatron",
    "pipeline_parallel": "ref-gpipe",
}
DATA = {
    "ag_news": "ref-agnews",
    "imdb": "ref-imdb",
    "mnist": "ref-mnist",
    "digits": "ref-digits",
    "shakespeare": "ref-shakespeare",
}


def shown(markdown: str) -> str:
    """Sentences of a discussion, with figures and tables after the first mention of each."""
    return _after_first(markdown, SHOWN)


def cited(markdown: str) -> str:
    """Sentences of the report, with a reference after the first mention of published work."""
    return _after_first(markdown, {words: (label,) for words, label in TERMS.items()})


def _after_first(markdown: str, labels: Mapping[str, Sequence[str]]) -> str:
    for pattern, places in labels.items():
        markdown = re.sub(pattern, rf"\g<0>{cite(*places)}", markdown, count=1)
    return markdown


def of_model(run: Run) -> str:
    """The label of the publication of a run's model; empty if there is nothing to cite."""
    match run.architecture:
        case PythonModel() | CNN() | Script():
            return ""
        case DistilBERT():
            return "ref-distilbert"
        case model:
            return "ref-gpt2" if model.kind == "gpt" else "ref-transformer"


def of_data(run: Run) -> str:
    """The label of the publication of a run's data set; empty if there is none."""
    return DATA.get(run.dataset.kind, "")


def of_strategy(run: Run) -> str:
    """The label of the publication of a run's strategy; empty for one device, and user code."""
    return STRATEGIES.get(run.strategy, "") if run.world_size > 1 else ""


def cite(*labels: str) -> str:
    """Markdown that cites figures, tables or references; `number_parts` fills in their numbers.

    Targets that the page lacks are left out, and the parentheses too if none remains.
    """
    links = "".join(f'<a href="#{label}"></a>' for label in labels)
    return f'<span class="cite">{links}</span>'


def number_parts(soup: BeautifulSoup) -> None:
    """Number captions whose figure or table has a label, cited references, and all citations.

    A list of class `references` keeps only what is cited, in order of first citation.
    """
    from lab.report.page import link_target

    names = _number_captions(soup)
    names |= _arrange_references(soup)
    for citation in soup.select("span.cite"):
        links = [link for link in citation.find_all("a") if link_target(link) in names]
        citation.clear()
        if not links:
            citation.decompose()
            continue
        brackets = "[]" if link_target(links[0]).startswith(REFERENCE) else "()"
        citation.append(f" {brackets[0]}")
        for nth, link in enumerate(links):
            link.string = names[link_target(link)]
            citation.extend([", ", link] if nth else [link])
        citation.append(brackets[1])


def _number_captions(soup: BeautifulSoup) -> dict[str, str]:
    """The names of labelled figures and tables, now the beginnings of their captions."""
    from lab.report.page import add_class

    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for part in soup.find_all(["figure", "table"], id=True):
        label, caption = str(part["id"]), part.find(["figcaption", "caption"])
        kind = KINDS.get(label[:4])
        if kind is None or caption is None:
            continue
        counts[kind] += 1
        name = f"{kind} {counts[kind]}"
        names.setdefault(label, name)
        add_class(part, "numbered")
        caption.insert(0, " ")
        caption.insert(0, soup.new_tag("strong", string=f"{name}."))
    return names


def _arrange_references(soup: BeautifulSoup) -> dict[str, str]:
    """The numbers of the references that are cited; the others leave the list.

    A list in which none remains leaves the page, with the heading above it.
    """
    from lab.report.page import HEADING, link_target

    entries = {str(entry["id"]): entry for entry in soup.select("ol.references > li[id]")}
    cited = dict.fromkeys(map(link_target, soup.select("span.cite > a")))
    numbers = {label: str(nth) for nth, label in enumerate((k for k in cited if k in entries), 1)}
    for bibliography in soup.select("ol.references"):
        bibliography.clear()
        bibliography.extend(entries[label] for label in numbers)
        if not numbers:
            if heading := bibliography.find_previous(HEADING):
                heading.extract()
            bibliography.extract()
    return numbers
