"""The HTML report: one file that opens offline, in light and dark, on screen and on paper.

Of each cell's outputs it keeps one form: widgets as text, HTML sanitized.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import nbformat
import nh3
import tinycss2
from bs4 import BeautifulSoup, Tag
from jinja2 import TemplateNotFound, pass_context
from jinja2.runtime import Context
from nbconvert.exporters import TemplateExporter
from nbconvert.filters.markdown_mistune import InvalidNotebook, MarkdownWithMath
from nbformat import NotebookNode
from traitlets import Unicode
from traitlets.config import Config

from lab.errors import LabError
from lab.formatting import printable
from lab.report import math, page
from lab.report.math import ELEMENT
from lab.report.page import svg_to_image
from lab.report.references import number_parts

TAGS = (nh3.ALLOWED_TAGS - {"area", "map", "nav"}) | {"section", "style", ELEMENT}
# Removed with their content; any other unknown element is replaced by its content.
REMOVED = set(
    re.findall(
        r"\w+",
        "script iframe frame frameset object embed applet link meta base form input button select "
        "option textarea template noscript noembed noframes audio video source track canvas portal "
        "head title svg math xmp plaintext dialog map area param",
    )
)
ATTRIBUTES = nh3.ALLOWED_ATTRIBUTES | {
    "*": {"class", "dir", "display", "id", "lang", "open", "reversed", "style", "title", "type"},
    "a": {"href", "name"},
    "li": {"value"},
    "table": set(),
    "td": {"align", "colspan", "rowspan", "valign"},
    "th": {"align", "colspan", "rowspan", "scope", "valign"},
}
PROPERTIES = re.compile(
    r"(-webkit-)?(background|background-color|color|font-(size|style|weight|variant|family)"
    r"|text-(align|decoration|indent|transform)|vertical-align|white-space|opacity|line-height"
    r"|float|caption-side|(min-|max-)?(width|height)"
    r"|(padding|border|margin)(-(left|right|top|bottom|color|style|width|collapse|spacing|radius))*)"
)
FUNCTIONS = frozenset({"rgb", "rgba", "hsl", "hsla", "calc", "linear-gradient"})

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp")
_PROGRESS_BAR = re.compile(r"\s*(?:[^|\n]*:\s*)?\d{1,3}%\|")
_IMAGE_DATA = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml)[;,]", re.IGNORECASE)
_CHECKBOX = re.compile(r"<input\b(?=[^>]*type=[\"']?checkbox)([^>]*)>", re.IGNORECASE)
ASSETS = Path(__file__).with_name("assets")


def sanitize(html: str) -> str:
    """Remove scripts, frames, forms, event handlers and unsafe addresses from a user's HTML.

    Inline SVG becomes an image and a checkbox a character. A `<style>` keeps the rules that select
    an element by its id, as a pandas Styler writes them.
    """
    html = _CHECKBOX.sub(lambda match: "☑ " if "checked" in match[1].lower() else "☐ ", html)
    html = _CLEANER.clean(svg_to_image(html))
    if "<style" not in html:
        return html
    soup = BeautifulSoup(html, "html.parser")
    for style in soup.find_all("style"):
        _scope_style(style)
    return soup.decode(formatter="html5")


def _filter_attribute(_: str, name: str, value: str) -> str | None:
    if name == "style":
        return _safe_declarations(tinycss2.parse_blocks_contents(value)) or None
    if name in {"href", "src"}:
        # Browsers ignore control characters and white space within a scheme.
        address = re.sub(r"[\x00-\x20\x7f-\xa0\u200b-\u200f\u2028\u2029\ufeff]", "", value).lower()
        if name == "href" and address.startswith(("data:", "file:", "attachment:")):
            return None
        if name == "src" and address.startswith("data:") and not _IMAGE_DATA.match(value):
            return None
    return value


_CLEANER = nh3.Cleaner(
    tags=TAGS,
    clean_content_tags=REMOVED,
    attributes=ATTRIBUTES,
    attribute_filter=_filter_attribute,
    # A file or an attachment may be an image; embedding reports it if it is missing.
    url_schemes={"http", "https", "mailto", "data", "file", "attachment"},
    link_rel=None,
)


def _scope_style(style: Tag) -> None:
    """Keep of a `<style>` the rules whose every selector starts with an id."""
    rules = [
        f"{tinycss2.serialize(rule.prelude).strip()} {{ {declarations} }}"
        for rule in tinycss2.parse_stylesheet(style.get_text(), True, True)
        if rule.type == "qualified-rule"
        if all(part.strip()[:1] == "#" for part in tinycss2.serialize(rule.prelude).split(","))
        if (declarations := _safe_declarations(tinycss2.parse_blocks_contents(rule.content)))
    ]
    if rules:
        style.attrs = {}
        style.string = "\n".join(rules).replace("<", "")
    else:
        style.decompose()


def _safe_declarations(nodes: list[tinycss2.ast.Node]) -> str:
    return "; ".join(
        f"{node.lower_name}: {tinycss2.serialize(node.value).strip()}"
        for node in nodes
        if node.type == "declaration" and PROPERTIES.fullmatch(node.lower_name)
        if all(map(_is_safe, node.value))
    )


def _is_safe(token: tinycss2.ast.Node) -> bool:
    if token.type == "function":
        return token.lower_name in FUNCTIONS and all(map(_is_safe, token.arguments))
    return token.type not in {"url", "error"}


def make_static(nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
    """Reduce each output to text, HTML or Markdown: a preprocessor for nbconvert.

    Figures become HTML with their alternative text, widgets what they showed when saved.
    """
    widgets = nb.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    for cell in nb.cells:
        if cell.cell_type == "code":
            outputs = [shown for output in cell.outputs for shown in _expand(output, widgets)]
            cell.outputs = [output for output in outputs if _choose_form(output, cell)]
    return nb, resources


def _choose_form(output: NotebookNode, cell: NotebookNode) -> bool:
    """Reduce an output, in place, to the form that a static page shows best; false if none."""
    if "data" not in output:
        return True
    order = [IMAGES[0], "text/html", "text/markdown", *IMAGES[1:], "text/latex", "text/plain"]
    if "text/html" in output.data and not _is_visible(sanitize(str(output.data["text/html"]))):
        order.remove("text/html")
    form = next((form for form in order if form in output.data), None)
    if form is None:
        return False
    data = output.data[form]
    if form in IMAGES:
        output.data = {"text/html": _figure(form, str(data), output.get("metadata", {}), cell)}
    else:
        # Jupyter's Markdown finds the formulas in LaTeX.
        output.data = {"text/markdown" if form == "text/latex" else form: data}
    output.metadata = nbformat.from_dict({})
    return True


def _is_visible(html: str) -> bool:
    soup = BeautifulSoup(html, "html.parser")  # whose text has no styles
    return bool(soup.get_text().strip() or soup.find("img"))


def _figure(form: str, data: str, metadata: Mapping[str, Any], cell: NotebookNode) -> str:
    """HTML of a figure; its texts and size come from the metadata of output or cell."""
    own = metadata.get(form, {})
    sources = [cell.get("metadata", {}), metadata, own if isinstance(own, Mapping) else {}]
    keys = ("alt", "caption", "label", "width", "height")
    about = {key: escape(str(part[key])) for part in sources for key in keys if part.get(key)}
    if form == "image/svg+xml":
        data = base64.b64encode(data.encode()).decode()
    size = "".join(f' {key}="{about[key]}"' for key in ("width", "height") if key in about)
    alt = about.get("alt") or about.get("caption", "")
    caption = f"<figcaption>{about['caption']}</figcaption>" if "caption" in about else ""
    source = f"data:{form};base64,{''.join(data.split())}"
    label = f' id="{about["label"]}"' if "label" in about else ""
    return f'<figure{label}><img src="{source}" alt="{alt}"{size}>{caption}</figure>'


def _expand(output: NotebookNode, widgets: Mapping[str, Any]) -> Iterator[NotebookNode]:
    """Replace a widget by static outputs; `widgets` are the saved models by their ids.

    Without a saved model the output's own HTML or text stays, unless it is a progress bar.
    """
    if VIEW not in output.get("data", {}):
        yield output
        return
    identifier = output.data.pop(VIEW)["model_id"]
    if identifier not in widgets:
        if output.data and not _PROGRESS_BAR.match(str(output.data.get("text/plain", ""))):
            yield output
        return
    shown = _widget_outputs(identifier, widgets)
    for is_control, group in groupby(shown, key=lambda part: isinstance(part, str)):
        if is_control:
            rows = "".join(map(str, group))
            html = f'<table class="settings"><tbody>{rows}</tbody></table>'
            yield _display("text/html", html)
        else:
            yield from (part for part in group if not isinstance(part, str))


def _widget_outputs(identifier: str, widgets: Mapping[str, Any]) -> Iterator[NotebookNode | str]:
    """Outputs of a widget and its children; for a control, a table row with its value."""
    model = widgets.get(identifier, {})
    # Recursion ends here if a widget contains itself.
    others = {key: other for key, other in widgets.items() if key != identifier}
    name, state = str(model.get("model_name", "")), model.get("state", {})
    if name == "OutputModel":
        for output in state.get("outputs", ()):
            yield from _expand(nbformat.from_dict(output), others)
    elif name in {"HTMLModel", "HTMLMathModel"}:
        yield _display("text/html", str(state.get("value", "")))
    elif name == "LabelModel":
        yield _display("text/plain", str(state.get("value", "")))
    elif name == "ImageModel":
        for buffer in model.get("buffers", ()):
            if buffer.get("path") == ["value"] and buffer.get("encoding") == "base64":
                yield _display(f"image/{state.get('format', 'png')}", buffer["data"])
    elif "children" in state:
        children = [child.removeprefix("IPY_MODEL_") for child in state["children"]]
        names = [str(widgets.get(child, {}).get("model_name", "")) for child in children]
        # A box that contains a bar is a progress display, whose labels are useless once done.
        if not any(child.endswith("ProgressModel") for child in names):
            for child in children:
                yield from _widget_outputs(child, others)
    elif not name.endswith(("ProgressModel", "ButtonModel")):
        value = _control_value(state)
        label = str(state.get("description") or name.removesuffix("Model"))
        if value is not None:
            yield f'<tr><th scope="row">{escape(label)}</th><td>{escape(value)}</td></tr>'


def _control_value(state: Mapping[str, Any]) -> str | None:
    if "index" in state and "_options_labels" in state:
        labels, index = state["_options_labels"], state["index"]
        selected = index if isinstance(index, list) else [] if index is None else [index]
        return ", ".join(str(labels[number]) for number in selected)
    value = state.get("value")
    if value is None or isinstance(value, Mapping):
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " to ".join(map(str, value)) if isinstance(value, list) else str(value)


def _display(form: str, data: str) -> NotebookNode:
    output: NotebookNode = nbformat.v4.new_output("display_data", data={form: data})
    return output


@dataclass(frozen=True)
class Document:
    """A notebook's page with embedded images; its formulas are still `<lab-math>` elements."""

    title: str
    authors: tuple[str, ...]
    language: str
    body: BeautifulSoup
    lists_contents: bool  # in print, where they would take up prime space

    @property
    def byline(self) -> str:
        """The authors in a line; a name may hold a comma before its affiliation."""
        return ("; " if any("," in name for name in self.authors) else ", ").join(self.authors)


class LabHTMLExporter(TemplateExporter):
    """Exporter of nbconvert: `jupyter nbconvert --to lab_html NOTEBOOK`.

    Cells tagged `remove-cell` and the parameters that papermill injects are left out, `hide-input`
    shows no code, `hide-output` no output. A figure's metadata may hold `alt`, `caption` and
    `label`; a caption is numbered if the label (for a table, its id) begins with `fig-` or `tbl-`.
    Title, authors and language come from the notebook's metadata (`title`, `authors`, `lang`), or
    the title from the first heading; with `toc: false` the PDF lists no contents. Raises
    LabError for a formula that cannot be translated and for a missing or remote image.
    """

    export_from_notebook = "Scaling Lab page (HTML)"
    output_mimetype = "text/html"
    raw_mimetypes = ["text/html", ""]
    file_extension = ".html"
    extra_template_basedirs = [str(ASSETS.parent)]
    template_name = ASSETS.name
    template_file = "index.html.j2"
    page_template = "page.html.j2"  # around the body; these are files of ASSETS
    styles: tuple[str, ...] = ("style.css",)
    scripts: tuple[str, ...] = ("page.js",)
    language_code = Unicode("en", help="Language of the page, an ISO 639-1 code.").tag(config=True)

    def __init__(self, config: Config | None = None, **kw: Any) -> None:
        super().__init__(config=config, **kw)  # type: ignore[no-untyped-call]
        self.register_preprocessor(make_static, enabled=True)  # type: ignore[no-untyped-call]

    @property
    def default_config(self) -> Config:
        """nbconvert's settings for this exporter: the tags, and the form of outputs and code."""
        config = Config(
            {
                "TagRemovePreprocessor": {
                    "enabled": True,
                    "remove_cell_tags": {"remove-cell", "injected-parameters"},
                    "remove_input_tags": {"hide-input"},
                    "remove_all_outputs_tags": {"hide-output"},
                },
                "CoalesceStreamsPreprocessor": {"enabled": True},
                "HighlightMagicsPreprocessor": {"enabled": True},
                "Highlight2HTML": {"extra_formatter_options": {"nowrap": True}},
                "NbConvertBase": {
                    "display_data_priority": ["text/html", "text/markdown", "text/plain"]
                },
            }
        )
        settings: Config = super().default_config.copy()
        settings.merge(config)
        return settings

    def default_filters(self) -> Iterator[tuple[str, Callable[..., str]]]:
        """nbconvert's filters, and those that make Markdown and HTML safe."""
        yield from super().default_filters()  # type: ignore[no-untyped-call]
        yield "markdown2html", self.markdown2html
        yield "sanitize", sanitize
        yield "strip_ansi", printable

    @pass_context
    def markdown2html(self, context: Context, source: str) -> str:
        """Markdown to sanitized HTML, with formulas as elements of their own."""
        attachments = context.get("cell", {}).get("attachments", {})
        renderer = math.MathRenderer(
            escape=False, attachments=attachments, exclude_anchor_links=True
        )
        return sanitize(MarkdownWithMath(renderer=renderer).render(source))

    def document(
        self, nb: NotebookNode, resources: dict[str, Any] | None, **kw: Any
    ) -> tuple[Document, dict[str, Any]]:
        """The notebook's page, the source of both the file and the PDF."""
        try:
            html, resources = super().from_notebook_node(nb, resources, **kw)
        except InvalidNotebook as error:
            raise LabError(f"the notebook refers to an image that is not in it: {error}") from error
        except TemplateNotFound as error:
            raise LabError(
                f"nbconvert lacks its template {error}, which lies in share/jupyter of its "
                "environment: install nbconvert again, or let JUPYTER_PATH name that folder"
            ) from error
        about = resources.get("metadata", {})
        body = BeautifulSoup(html, "html.parser")
        heading, title = page.title_heading(body), nb.metadata.get("title")
        if heading is None and title:
            heading = body.new_tag("h1", string=str(title))
            body.insert(0, heading)
        title = " ".join(str(title or (heading.get_text() if heading else "")).split())
        title = title or str(about.get("name") or "Notebook")
        page.embed_images(body, folder=Path(about.get("path") or "."), title=title)
        number_parts(body)
        page.arrange_tables(body)
        page.keep_units(body)
        page.set_ids(body)
        page.resolve_links(body)
        language = str(nb.metadata.get("lang") or self.language_code)
        authors, contents = _authors(nb.metadata.get("authors")), bool(nb.metadata.get("toc", True))
        return Document(title, authors, language, body, contents), resources

    def from_notebook_node(  # type: ignore[override]  # text, as nbconvert's own exporters
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        """The self-contained page of a notebook, and nbconvert's resources."""
        document, resources = self.document(nb, resources, **kw)
        body = document.body
        heading = page.title_heading(body)
        if heading and document.authors:
            line = body.new_tag("p", attrs={"class": "byline"}, string=document.byline)
            heading.insert_after(line)
        math.to_mathml(body)
        script = _texts(self.scripts)
        html = self.environment.get_template(self.page_template).render(
            document=document,
            digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            style=math.font_face(body) + _texts(self.styles),
            script=script,
            contents=page.contents_html(body),
            body=body.decode(formatter="html5").strip(),
        )
        return html, resources


def _texts(names: Iterable[str]) -> str:
    return "\n".join((ASSETS / name).read_text("utf-8") for name in names)


def _authors(metadata: Any) -> tuple[str, ...]:
    authors = metadata if isinstance(metadata, list | tuple) else [metadata]
    names = (part.get("name") if isinstance(part, dict) else part for part in authors)
    return tuple(str(name) for name in names if name)
