"""The Markdown of answers: what it makes of each construct, and that no text becomes markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Page

RENDER = """async (text) => {
  const { blocks, render } = await import("/ui/js/markdown.js");
  const root = document.createElement("div");
  root.append(...render(blocks(text)));
  for (const button of root.querySelectorAll("button")) button.remove();
  return root.innerHTML;
}"""


@pytest.fixture
def page(fake_url: str, open_page: OpenPage) -> Page:
    return open_page(fake_url)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain", "<p>plain</p>"),
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("# Title #", "<h1>Title</h1>"),
        ("###### Small", "<h6>Small</h6>"),
        ("#hashtag", "<p>#hashtag</p>"),
        ("**bold** and *em* and ~~gone~~", "<p><strong>bold</strong> and <em>em</em> and <del>gone</del></p>"),
        ("***both***", "<p><strong><em>both</em></strong></p>"),
        ("2 * 3 * 4 and snake_case_name", "<p>2 * 3 * 4 and snake_case_name</p>"),
        ("__init__ is _not_ bold__", "<p><strong>init</strong> is <em>not</em> bold__</p>"),
        (r"\*kept\* and a\b", r"<p>*kept* and a\b</p>"),
        ("`a*b*` and ``x`y``", "<p><code>a*b*</code> and <code>x`y</code></p>"),
        ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("- a\n  - b\n    - c\n- d", "<ul><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ul>"),
        ("1. a\n   more\n\n2. b", "<ol><li>a\nmore</li><li>b</li></ol>"),
        ("- a\n\nafter", "<ul><li>a</li></ul><p>after</p>"),
        ("- a\n1. b", "<ul><li>a</li></ul><ol><li>b</li></ol>"),
        ("> quoted\n> more", "<blockquote><p>quoted\nmore</p></blockquote>"),
        ("a\n***\nb", "<p>a</p><hr><p>b</p>"),
        ("not a | table", "<p>not a | table</p>"),
        ("- [x] done", "<ul><li>[x] done</li></ul>"),
    ],
)
def test_constructs(page: Page, text: str, html: str) -> None:
    assert page.evaluate(RENDER, text) == html


def test_code_is_never_parsed(page: Page) -> None:
    html = page.evaluate(RENDER, "```html\n<b>*x*</b>\n\n# no\n```\nafter")
    assert "&lt;b&gt;*x*&lt;/b&gt;\n\n# no</code>" in html
    assert html.endswith("<p>after</p>")


def test_an_unfinished_fence_is_code(page: Page) -> None:
    assert "<code>x = 1</code>" in page.evaluate(RENDER, "text\n```\nx = 1")


def test_code_in_a_list(page: Page) -> None:
    html = page.evaluate(RENDER, "1. run\n   ```sh\n   ls\n   ```\n2. done")
    assert ">ls</code>" in html
    assert html.count("<li>") == 2


def test_tables(page: Page) -> None:
    html = page.evaluate(RENDER, "|a|b|\n|--|:-:|\n|1|`x\\|y`|")
    assert "<th>a</th>" in html
    assert '<td class="center"><code>x|y</code></td>' in html


def test_highlighting_keeps_every_character(page: Page) -> None:
    code = 'def f(x):  # note\n    return "a\\"b" + 1.5e3\n'
    text = page.evaluate(
        """async (code) => {
          const { highlight } = await import("/ui/js/highlight.js");
          const root = document.createElement("code");
          root.append(...highlight(code, "python"));
          return [root.textContent, root.querySelectorAll("span").length];
        }""",
        code,
    )
    assert text[0] == code
    assert text[1] == 5


@pytest.mark.parametrize(
    "text",
    [
        "<script>window.pwned = 1</script>",
        "<img src=x onerror='window.pwned = 1'>",
        "[x](javascript:window.pwned=1)",
        "[x](JaVaScRiPt:window.pwned=1)",
        "[x](data:text/html,<script>window.pwned=1</script>)",
        "![x](https://example.com/track.png)",
        '<https://example.com/" onmouseover=window.pwned=1>',
        "`<b>` **<i>** [<u>](https://example.com/<s>)",
        "| <b> |\n|---|\n| <script>window.pwned=1</script> |",
        "```<script>\n</code></pre><script>window.pwned=1</script>\n```",
    ],
)
def test_no_text_becomes_markup(page: Page, text: str) -> None:
    found = page.evaluate(
        """async (text) => {
          const { blocks, render } = await import("/ui/js/markdown.js");
          const bad = ["img", "script", "b", "i", "u", "s"].map((tag) => `#out ${tag}`).join();
          const out = document.createElement("div");
          out.id = "out";
          document.body.append(out);
          out.append(...render(blocks(text)));
          const handlers = "[onerror], [onmouseover], a[href^='javascript' i], a[href^='data' i]";
          await new Promise((resolve) => setTimeout(resolve, 20));
          return [document.querySelectorAll(`${bad}, ${handlers}`).length, window.pwned ?? null];
        }""",
        text,
    )
    assert found == [0, None]


def test_growing_text_ends_as_whole_text(page: Page) -> None:
    from tests.fake_server import MARKDOWN

    grown, whole, kept = page.evaluate(
        """async (text) => {
          const { LiveMarkdown, blocks, render } = await import("/ui/js/markdown.js");
          const [a, b] = [document.createElement("div"), document.createElement("div")];
          const live = new LiveMarkdown(a);
          let first = null;
          for (let end = 0; end <= text.length; end += 3) {
            live.update(text.slice(0, end));
            if (end > 40) first ??= a.firstChild;
          }
          live.update(text);
          b.append(...render(blocks(text)));
          return [a.innerHTML, b.innerHTML, first === a.firstChild];
        }""",
        MARKDOWN,
    )
    assert grown == whole
    assert kept, "a finished block stays the same node"


@pytest.mark.parametrize(
    "text", ["*" * 20_000, "[" * 20_000, "`" * 9_999 + " ", "_a" * 9_000, "> " * 3_000, "**a " * 5_000]
)
def test_no_text_takes_long(page: Page, text: str) -> None:
    timed = f"async (text) => {{ const t = performance.now(); await ({RENDER})(text); return performance.now() - t; }}"
    ms = page.evaluate(timed, text)
    assert ms < 2000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", ["", "plain", False]),
        ("<thi", ["", "", True]),
        ("<think>a", ["a", "", True]),
        ("<think>a</think>\n\nb", ["a", "b", False]),
        ("opened in the prompt</think>b", ["opened in the prompt", "b", False]),
        ("a <think> later", ["", "a <think> later", False]),
        ("<", ["", "", True]),
        ("<b", ["", "<b", False]),
        ("\n", ["", "", True]),
    ],
)
def test_thinking_is_split_off(page: Page, text: str, expected: list[object]) -> None:
    script = """async (t) => {
      const { splitThinking } = await import("/ui/js/thinking.js");
      const { thinking, answer, open } = splitThinking(t);
      return [thinking, answer, open];
    }"""
    assert page.evaluate(script, text) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_survive_any_chunking(page: Page, size: int) -> None:
    stream = ': hi\r\n\r\ndata: {"a":"é🦙"}\r\n\r\nevent: error\ndata: 1\ndata: 2\n\ndata: [DONE]\n\n'
    script = """async ([stream, size]) => {
      const { events } = await import("/ui/js/sse.js");
      const bytes = new TextEncoder().encode(stream);
      const body = new ReadableStream({
        start(controller) {
          for (let i = 0; i < bytes.length; i += size) controller.enqueue(bytes.slice(i, i + size));
          controller.close();
        },
      });
      const out = [];
      for await (const event of events(body)) out.push([event.event, event.data]);
      return out;
    }"""
    expected = [["message", '{"a":"é🦙"}'], ["error", "1\n2"], ["message", "[DONE]"]]
    assert page.evaluate(script, [stream, size]) == expected
