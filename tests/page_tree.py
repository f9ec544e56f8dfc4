"""A page as a tree of elements, with what tests ask of one."""

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Element:
    """A tag with its attributes, its elements, and the text within."""

    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children, self.words = [], []

    def __getitem__(self, name):
        return self.attributes[name]

    def all(self, tag=None, **attributes):
        """Every element below with this tag and these attributes; `_` stands for `-`."""
        wanted = {name.replace("_", "-").strip("-"): value for name, value in attributes.items()}
        for child in self.children:
            has = child.attributes
            if tag in {None, child.tag} and all(
                name in has and value in {..., has[name]} for name, value in wanted.items()
            ):
                yield child
            yield from child.all(tag, **attributes)

    def one(self, tag=None, **attributes):
        """The only one."""
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def classes(self):
        return self.attributes.get("class", "").split()

    @property
    def text(self):
        """All text below, with single spaces."""
        return " ".join("".join(self._texts()).split())

    def _texts(self):
        for one in self.words:
            yield one if isinstance(one, str) else "".join(one._texts()) + " "


class _Builder(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.top = self.here = Element("", {}, None)

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), (tag, names)
        made = Element(tag, dict(attributes), self.here)
        self.here.children.append(made)
        self.here.words.append(made)
        if tag not in VOID:
            self.here = made

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.here.tag == tag, f"</{tag}> closes <{self.here.tag}> at {self.getpos()}"
        self.here = self.here.parent

    def handle_data(self, data):
        self.here.words.append(data)


def tree(text):
    """The tree of a page, in which every tag that is opened is closed."""
    builder = _Builder()
    builder.feed(text)
    builder.close()
    assert builder.here is builder.top
    return builder.top


def numbers(page):
    """The numbers that a page holds of its report: path → what stands there."""
    found = {}
    for one in page.all(data_key=...):
        steps, below, above = [one["data-key"]], one, one.parent
        while above is not None:
            if "data-rows" in above.attributes:
                steps.append(f"{above['data-rows']}/{above.children.index(below)}")
            steps.append(above.attributes.get("data-path"))
            below, above = above, above.parent
        if any(step is not None for step in steps[1:]):
            found.setdefault("/".join(filter(None, reversed(steps))), []).append(one)
    return found


def value(one):
    """The exact numbers of such an element: what it says, or more digits than it shows."""
    given = [one.attributes.get(name) for name in ("value", "data-value")]
    return next((word for word in given if word is not None), one.text.replace("×", " "))


def told(report, path=""):
    """The numbers of a report: path → value; a list of numbers is one."""
    if isinstance(report, dict):
        for key, value in report.items():
            yield from told(value, f"{path}/{key}".lstrip("/"))
    elif isinstance(report, list) and not all(isinstance(one, int) for one in report):
        for at, value in enumerate(report):
            yield from told(value, f"{path}/{at}")
    elif isinstance(report, int | float | list) and not isinstance(report, bool) and report != []:
        yield path, report
