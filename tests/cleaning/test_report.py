"""The report: its numbers add up and are rounded, and it is short until something is unfolded."""

import re
from html import unescape

import numpy as np
import pandas
import pytest

from dross.cleaning.plans import Edits, count_by_class
from dross.cleaning.project import Project
from dross.cleaning.report import write_report
from tests.cleaning.made_inputs import change_json
from tests.review.review_project import make_project, make_verdict, write_verdict


def read_page(project):
    page = write_report(project).read_text()
    return re.sub(r"<svg.*?</svg>|<style>.*?</style>|data:image/[^\"]*", "", page, flags=re.S)


def text_of(markup):
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def read_table(page, kind):
    """The rows of a table, the head first: lists of texts."""
    table = re.search(rf'<table class="{kind}(?: stacked)?">.*?</table>', page, flags=re.S)
    assert table, kind
    rows = re.findall(r"<tr.*?</tr>", table.group(), flags=re.S)
    cell = r"<t[hd].*?</t[hd]>"
    return [[text_of(each) for each in re.findall(cell, row, flags=re.S)] for row in rows]


def number(text):
    return int(
        text.split(" (")[0].replace("\N{MINUS SIGN}", "-").replace(",", "").replace("·", "0")
    )


def read_story(page):
    story = re.search(r'<dl class="story">.*?</dl>', page, flags=re.S)
    assert story
    parts = re.findall(r"<div>.*?</div>", story.group(), flags=re.S)
    lines = [re.findall(r"<d[td].*?</d[td]>", part, flags=re.S) for part in parts]
    return {text_of(title): (text_of(value), text_of(detail)) for title, value, detail in lines}


def test_the_numbers_of_the_report_add_up(cleaned):
    page = read_page(cleaned)
    story = read_story(page)
    total = cleaned.info.counts["train"]
    plan = cleaned.recommended
    wrong, rows = story["Labels that look wrong"][0].split(" of ")
    assert int(rows) == total
    value, detail = story["Recommendation"]
    edited = sum(map(int, re.findall(r"\d+", value)))
    left = re.findall(r"\d+", detail)
    assert edited == len(plan) and edited + int(left[0]) == int(left[1]) == total
    head, *rows, sums = read_table(page, "suggested")
    counts = np.array([[number(cell) for cell in row[1:]] for row in rows])
    assert head[-1] == "all" and (counts[:, :-1].sum(1) == counts[:, -1]).all()
    assert counts.sum(0).tolist() == [number(cell) for cell in sums[1:]]
    assert sums[-1] == wrong and (cleaned.table["wrong"] > 0.5).sum() == int(wrong)
    _, *rows, sums = read_table(page, "classes")
    counts = np.array([[number(cell) for cell in row[1:]] for row in rows])
    before, removed, relabeled, gained, after, _ = counts.T
    assert (before + removed + relabeled + gained == after).all()
    assert counts.sum(0).tolist() == [number(cell) for cell in sums[1:]]
    assert before.sum() == total and after.sum() == total - len(plan.removed)
    assert -relabeled.sum() == gained.sum() == len(plan.relabeled)


def test_the_first_screen_tells_the_story(tmp_path):
    project = make_project(tmp_path / "p", "table", 60, planned=True)
    story = read_story(read_page(project))
    assert list(story) == [
        "Labels that look wrong",
        "Recommendation",
        "Held-out error",
        "Verified by retraining",
    ]
    assert story["Labels that look wrong"][0] == "10 of 60"
    assert story["Recommendation"][0] == "Relabel 5 and remove 5"
    assert "other 50 of 60" in story["Recommendation"][1]
    error, change = story["Held-out error"]
    assert error == "15.0 % → 13.9 %"
    assert "-1.1 points, 95 % confidence interval -1.4 to -0.8" in change
    assert "Log loss: 0.400 → 0.389" in change
    assert story["Verified by retraining"][0] == "Not yet"
    write_verdict(project, make_verdict())
    verified, changes = read_story(read_page(project))["Verified by retraining"]
    assert verified == "Improved" and "Error: 15." in changes and " % → 14." in changes


def test_no_change_has_nothing_to_verify(tmp_path):
    story = read_story(read_page(make_project(tmp_path / "p", "table", 60)))
    assert story["Recommendation"][0] == "Change nothing"
    assert "Verified by retraining" not in story


def test_many_or_long_classes_are_listed_in_pairs_with_a_sum(tmp_path):
    project = make_project(tmp_path / "p", "images", 300, planned=True)
    new = {name: f"digit {name} with a name too long for a column" for name in project.classes}

    def rename(content):
        content["classes"] = list(new.values())
        for plan in content["recommendation"]["plans"]:
            plan["relabeled"] = {id: new[name] for id, name in plan["relabeled"].items()}

    change_json(project.folder / "project.json", rename)
    table = pandas.read_parquet(project.folder / "instances.parquet")
    # every other suggestion is another class, so that there are more pairs than rows in the table
    names = list(new)
    wrong = table.index[table["mislabel_rank"] >= 0][::2]
    table.loc[wrong, "prediction"] = [
        names[(names.index(label) + 3) % 10] for label in table.loc[wrong, "label"]
    ]
    table = table.replace({"label": new, "prediction": new})
    table.to_parquet(project.folder / "instances.parquet")
    head, *rows, sums = read_table(read_page(Project.open(project.folder)), "suggested")
    assert head == ["given", "suggested", "instances"]
    assert rows[-1][0].endswith("other pairs") and len(rows) == 11
    counts = [number(row[-1]) for row in rows]
    assert sum(counts) == number(sums[-1]) == 50
    assert counts[:-1] == sorted(counts[:-1], reverse=True)


@pytest.mark.parametrize("kind", ["table", "text", "images"])
def test_values_are_rounded(tmp_path, kind):
    project = make_project(tmp_path / "p", kind, 60, planned=True)
    if kind == "table":
        content = pandas.read_parquet(project.folder / "content.parquet")
        content = content.assign(age=[str(np.pi * k) for k in range(60)])
        content.to_parquet(project.folder / "content.parquet")
    page = read_page(Project.open(project.folder))
    assert re.findall(r"\d\.\d{6,}", text_of(page)) == []
    assert kind != "table" or "3.1416" in page or "6.2832" in page or "9.4248" in page


def test_every_class_is_counted_before_and_after():
    edits = Edits(np.array([0, 1]), {2: "b", 3: "a", 4: "c"})
    effects = count_by_class(["a", "a", "a", "a", "b"], edits)
    found = {each.name: (each.before, each.lost, each.gained, each.left) for each in effects}
    assert found == {"a": (4, 3, 0, 1), "b": (1, 1, 1, 1), "c": (0, 0, 1, 1)}
