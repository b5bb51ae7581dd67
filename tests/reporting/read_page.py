"""Read parts of a written report."""

import html
import json
import re


def read_data(page):
    """Return the data that the script of the page draws."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def read_titles(page):
    """Return the titles of sections, figures and tables."""
    titles = re.findall(r"<h3>(.*?)</h3>|<caption><span>(.*?)</span></caption>", page)
    return [heading or caption for heading, caption in titles]


def read_missing(page):
    """Return the sentences that say why something is missing, without markup."""
    sentences = re.findall(r'<p class="missing">(.*?)</p>', page, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]+>", "", sentence)) for sentence in sentences]
