"""What the words and commands of an answer mean: tables for the lexer, no logic."""

from __future__ import annotations

from collections.abc import Mapping

UNICODE: Mapping[str, str] = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "＋": "+", "＝": "=", "×": r"\times ",
    "⋅": r"\cdot ", "·": r"\cdot ", "∙": r"\cdot ", "∗": "*", "＊": "*", "÷": r"\div ", "⁄": "/", "∕": "/", "／": "/",
    "≤": r"\le ", "⩽": r"\le ", "≦": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≧": r"\ge ", "≠": r"\ne ", "＜": "<",
    "＞": ">", "≈": r"\approx ", "≡": r"\equiv ", "∈": r"\in ", "∉": r"\notin ", "∪": r"\cup ", "∩": r"\cap ",
    "∖": r"\setminus ", "∞": r"\infty ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "π": r"\pi ", "±": r"\pm ",
    "∓": r"\mp ", "°": r"^\circ ", "º": r"^\circ ", "′": "'", "’": "'", "‘": "'", "″": "''", "“": '"', "”": '"',
    "（": "(", "）": ")", "［": "[", "］": "]", "｛": r"\{", "｝": r"\}", "【": "[", "】": "]", "，": ",", "、": ",",
    "；": ";", "：": ":", "。": ".", "．": ".", "！": "!", "％": "%", "＄": "$", "￥": "¥", "｜": "|", "∣": "|",
    "‖": r"\|", "⟨": r"\langle ", "⟩": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ",
    "⌉": r"\rceil ", "…": r"\ldots ", "⋯": r"\ldots ", "∠": r"\angle ", "△": r"\triangle ", "ℓ": r"\ell ",
    "∧": r"\land ", "∨": r"\lor ", "∂": r"\partial ", "ℏ": r"\hbar ", "µ": "μ", "¬": r"\neg ",
    "\u00a0": " ", "\u2009": " ",
    "\u202f": " ", "\u3000": " ", "\u2002": " ", "\u2003": " ", "\u2005": " ", "\u200a": " ", "\u200b": "",
    "\u200c": "", "\u200d": "", "\u2060": "", "\ufeff": "", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}",
    "⅗": r"\frac{3}{5}", "⅘": r"\frac{4}{5}", "⅙": r"\frac{1}{6}", "⅚": r"\frac{5}{6}", "⅐": r"\frac{1}{7}",
    "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}", "⅑": r"\frac{1}{9}",
    "⅒": r"\frac{1}{10}",
}  # fmt: skip
"""Single characters and their LaTeX or ASCII spelling."""

SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎", "0123456789+-()", strict=True))

GREEK_LETTERS: Mapping[str, str] = dict(zip(
    "αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ",
    (
        "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu",
        "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta",
        "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega",
    ),
    strict=True,
))  # fmt: skip
"""Greek characters and the names of their commands."""

GREEK = frozenset(GREEK_LETTERS.values()) | {"varepsilon", "varphi", "varrho", "vartheta"}
"""Names of the commands of Greek letters, variants of shape included."""

FUNCTIONS: Mapping[str, str] = {
    name: name
    for name in (
        "sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "arcsin", "arccos",
        "arctan", "arccot", "ln", "log", "exp", "sqrt", "cbrt", "abs", "floor", "ceil",
        "gcd", "lcm", "max", "min", "factorial", "binomial",
    )
} | {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "lg", "tg": "tan", "ctg": "cot", "sgn": "sgn",
    "sign": "sgn", "ceiling": "ceil", "comb": "binomial", "binom": "binomial", "arctg": "arctan",
}  # fmt: skip
"""Function names, in LaTeX after a backslash and in plain text."""

PROSE_FUNCTIONS = frozenset(("lcm", "gcd", "sin", "cos", "tan", "cot", "ln", "log", "arcsin", "arccos", "arctan"))
"""Functions also when a prose command holds their name; `min` is a unit there."""

INVERSES: Mapping[str, str] = {name: "arc" + name for name in ("sin", "cos", "tan", "cot")}
"""What `\\sin^{-1}` and its like mean."""

TEXT_WRAPPERS = frozenset(
    [
        "text",
        "textrm",
        "textit",
        "textbf",
        "textsf",
        "texttt",
        "textnormal",
        "textup",
        "textsc",
        "mbox",
        "hbox",
        "mathrm",
        "emph",
    ]
)
"""Commands whose argument is prose."""

MATH_WRAPPERS = frozenset(
    [
        "mathbf",
        "boldsymbol",
        "bm",
        "mathcal",
        "mathsf",
        "mathit",
        "mathfrak",
        "underline",
        "boxed",
        "fbox",
        "ensuremath",
        "displaystyle",
        "textstyle",
        "scriptstyle",
        "left",
        "right",
        "middle",
        "big",
        "Big",
        "bigg",
        "Bigg",
        "bigl",
        "bigr",
        "Bigl",
        "Bigr",
        "biggl",
        "biggr",
        "Biggl",
        "Biggr",
        "limits",
        "nolimits",
        "rm",
        "bf",
        "it",
        "boldmath",
        "Large",
        "large",
        "normalsize",
        "small",
        "mathop",
        "mathrel",
        "mathbin",
        "mathord",
        "mathopen",
        "mathclose",
        "mathstrut",
        "strut",
    ]
)
"""Commands that change the look and not the meaning; their argument is read as mathematics."""

SPACES = frozenset(
    [
        "quad",
        "qquad",
        "enspace",
        "enskip",
        "thinspace",
        "medspace",
        "thickspace",
        "negthinspace",
        "nobreak",
        "nobreakspace",
    ]
)
DROPPED_ARGUMENT = frozenset(
    ["color", "hspace", "vspace", "textcolor", "hskip", "phantom", "vphantom", "hphantom", "label", "tag"]
)
"""Commands whose first argument says nothing about the value."""

LAYOUT_ENVIRONMENTS = frozenset(
    [
        "equation",
        "equation*",
        "align",
        "align*",
        "aligned",
        "gather",
        "gather*",
        "gathered",
        "split",
        "displaymath",
        "cases",
        "math",
        "center",
    ]
)
MATRIX_ENVIRONMENTS = frozenset(["matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array", "vmatrix"])

OPERATORS: Mapping[str, str] = {
    "cdot": "*", "times": "*", "ast": "*", "div": "/", "pm": "pm", "mp": "mp", "le": "le", "leq": "le",
    "leqslant": "le",
    "leqq": "le", "ge": "ge", "geq": "ge", "geqslant": "ge", "geqq": "ge", "lt": "<", "gt": ">", "ne": "ne",
    "neq": "ne",
    "in": "in", "approx": "approx", "simeq": "approx", "cup": "cup", "cap": "cap", "setminus": "minus",
    "backslash": "minus", "circ": "circ", "degree": "degree", "prime": "'", "ldots": "dots", "dots": "dots",
    "cdots": "dots", "dotsc": "dots", "lfloor": "lfloor", "rfloor": "rfloor", "lceil": "lceil", "rceil": "rceil",
    "vert": "|", "lvert": "|", "rvert": "|", "mid": "|", "langle": "langle", "rangle": "rangle", "lbrace": "lbrace",
    "rbrace": "rbrace", "lbrack": "[", "rbrack": "]", "colon": ":", "bmod": "mod", "over": "over", "lparen": "(",
    "rparen": ")", "bigcup": "cup", "union": "cup", "percent": "%",
}  # fmt: skip

CONNECTIVES: Mapping[str, str] = {"lor": "or", "vee": "or", "land": "and", "wedge": "and"}

ACCENTS = frozenset(
    [
        "overline",
        "bar",
        "hat",
        "widehat",
        "vec",
        "tilde",
        "widetilde",
        "dot",
        "ddot",
        "overrightarrow",
        "overset",
        "check",
    ]
)

SAME_ACCENT: Mapping[str, str] = {
    "bar": "overline", "overrightarrow": "vec", "widehat": "hat", "widetilde": "tilde",
}  # fmt: skip
"""Accents that differ in width alone."""

SYMBOL_COMMANDS = frozenset(
    [
        "angle",
        "triangle",
        "ell",
        "hbar",
        "partial",
        "nabla",
        "odot",
        "star",
        "ast",
        "square",
        "imath",
        "jmath",
        "Pr",
        "Re",
        "Im",
    ]
)

WORD_SYMBOLS: Mapping[str, str] = {"infinity": "inf", "infty": "inf", "inf": "inf", "oo": "inf"}

JOINERS: Mapping[str, str] = {"and": "and", "or": "or", "和": "and", "或": "or", "或者": "or", "与": "and", "及": "and"}

SMALL_WORDS = frozenset(
    [
        "no",
        "on",
        "is",
        "it",
        "so",
        "to",
        "or",
        "of",
        "in",
        "if",
        "up",
        "we",
        "he",
        "me",
        "my",
        "by",
        "go",
        "do",
        "as",
        "at",
        "an",
        "am",
        "be",
        "ok",
        "us",
    ]
)
"""Two-letter words that must not be read as a product of two variables."""

SHORT_NOUNS = frozenset(
    [
        "men",
        "man",
        "day",
        "cat",
        "dog",
        "car",
        "egg",
        "pen",
        "bag",
        "box",
        "cup",
        "way",
        "yen",
        "bus",
        "toy",
        "pie",
        "bit",
        "row",
        "set",
        "key",
        "hen",
        "cow",
        "pig",
        "fly",
        "bee",
        "boy",
        "fan",
        "hat",
        "ton",
        "mph",
        "kph",
        "rpm",
        "hrs",
        "yrs",
        "lbs",
        "gal",
        "won",
        "bar",
        "job",
        "can",
        "jar",
        "tin",
        "mat",
        "nut",
        "bun",
    ]
)
"""Three-letter words that may follow a number without a command around them."""

NOT_A_NOUN = frozenset(
    [
        "and",
        "or",
        "not",
        "no",
        "minus",
        "plus",
        "times",
        "over",
        "to",
        "than",
        "less",
        "more",
        "about",
        "approximately",
        "except",
        "but",
        "if",
        "where",
        "with",
        "is",
        "are",
        "because",
        "half",
        "squared",
        "cubed",
        "factorial",
        "wrong",
        "incorrect",
        "from",
        "nor",
        "then",
        "when",
        "mod",
        "divided",
        "multiplied",
        "plus-minus",
        "fewer",
        "below",
        "short",
        "off",
        "instead",
        "unless",
        "until",
        "without",
        "missing",
        "excluding",
        "maybe",
        "perhaps",
        "false",
        "invalid",
        "impossible",
        "never",
        "cannot",
        "percentile",
        "thirds",
        "fourths",
        "fifths",
        "sixths",
        "sevenths",
        "eighths",
        "ninths",
        "tenths",
        "hundredths",
        "thousandths",
        "millionths",
        "halves",
    ]
)
"""Words after a number that change or deny it, so that they are never a dropped unit."""

LEAD_INS = (
    "the final answer is", "the answer is", "final answer is", "final answer", "answer is", "answer", "the value is",
    "the result is", "therefore", "thus", "so", "hence", "ans", "答案是", "答案为", "答案", "we get", "it is",
)  # fmt: skip
"""Words before a value that only announce it."""

SCALES: Mapping[str, int] = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "万": 10**4, "亿": 10**8,
}  # fmt: skip

BASE_WORDS: Mapping[str, int] = {
    name: value
    for value, name in enumerate(
        [
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
        ],
        start=2,
    )
} | {"bin": 2, "binary": 2, "oct": 8, "octal": 8, "hex": 16, "dec": 10, "hexadecimal": 16, "decimal": 10}

SHORT_WORDS = frozenset(
    [
        "the",
        "are",
        "not",
        "per",
        "for",
        "day",
        "get",
        "has",
        "all",
        "one",
        "two",
        "six",
        "ten",
        "its",
        "was",
        "can",
        "and",
        "any",
        "out",
        "off",
        "you",
        "our",
    ]
)
"""Three-letter words that are words, not variables, when a longer word stands in the same text."""

ALL_REALS = frozenset(("all real numbers", "all reals", "all real x"))
"""Answers in words that mean the whole real line."""

EMPTY_SET = frozenset(("empty set", "the empty set"))
"""Answers in words that mean the empty set."""
