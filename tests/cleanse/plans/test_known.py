"""The plans of a finished project, as they are shown."""

import json

import dross
from cleanse.made_inputs import edit_json
from dross.cleanse.plans.known import tabulate_plans
from dross.cleanse.report import write_report


def test_the_report_shows_what_plans_do_for_models_of_other_kinds(cleaned):
    report, plans = (cleaned.folder / "report.html").read_text(), cleaned.plans
    assert all(set(plan.by_kind) == {"a linear model", "trees"} for plan in plans)
    for plan in plans:
        assert f"{100 * plan.by_kind['trees']:+.2f}</td>" in report
    assert report.count("change with a linear model, %</th>") == 1


def test_projects_whose_plans_no_other_kinds_tried_have_no_such_columns(cleaned):
    def forget(text):
        about = json.loads(text)
        del about["plans"]["finalists"][0]["by_kind"]
        return json.dumps(about)

    edit_json(cleaned.folder / "project.json", forget)
    project = dross.Project.open(cleaned.folder)
    assert project.plans[0].by_kind == {} and project.plans[1].by_kind
    table = tabulate_plans(project.plans, None)
    assert table["kinds"] == [] and all(row["by_kind"] == [] for row in table["rows"])
    assert "change with" not in write_report(project).read_text()
