"""Why an instance is in the list, in plain words."""

from dross.cleaning.findings import format_amount
from dross.cleaning.plans import Recommendation
from dross.review.sentences import reason_sentences
from tests.review.review_project import make_info


def test_why_is_answered_in_plain_words(page, shared_project):
    rows = shared_project.table
    worst = int(rows["harm_rank"][rows["harmful_in"] == rows["learned_in"]].idxmin())
    why = page.get("/api/why", params={"id": worst}).json()
    text = " ".join(sentence["text"] for sentence in why["sentences"])
    assert "the expected held-out error falls by" in text and "it makes the model worse" in text
    assert "of the 4 training runs that included it" in text and "repeated without it" in text
    assert "Its label is" in text and "more unusual than" in text
    assert len(why["hurts"]) == 4 and len(why["similar"]) == 4
    assert all(entry["label"] and entry["brief"] for entry in why["hurts"])
    for id in (10**6, "x"):
        assert page.get("/api/why", params={"id": id}).status_code == 400


ROW = {
    "score": -2e-4,
    "spread": 1e-5,
    "harmful_in": 4,
    "learned_in": 4,
    "label": "cat",
    "prediction": "dog",
    "probability": 0.93,
    "label_probability": 0.02,
    "wrong": 0.95,
    "verified": 3e-5,
    "outlier": 0.5,
    "action": "relabel",
    "confidence": 0.91,
}


def describe(task="classification", **changed):
    classes = ["cat", "dog"] if task == "classification" else []
    found = reason_sentences(ROW | changed, make_info(task=task, classes=classes))
    assert found[0]["about"] == "Recommended"
    return [sentence["text"] for sentence in found[1:]]


def test_what_is_recommended_comes_first_with_its_own_confidence():
    first = lambda **changed: reason_sentences(ROW | changed, make_info())[0]["text"]
    assert first() == "Relabel it as dog: this label is right with probability 91\u00a0%."
    removed = first(action="remove", confidence=0.5)
    assert removed == "Remove it: its label is wrong with probability 50\u00a0%."
    assert first(confidence=float("nan")) == "Relabel it as dog."
    assert "not in the plan" in first(action="keep")


def test_the_effect_has_a_direction_and_a_size():
    expected = "Without it, the expected held-out error falls by 0.020 points: "
    assert describe()[0] == expected + "it makes the model worse."
    disputed, because, *_ = describe(harmful_in=2)
    concerns = "The recommendation concerns its label and does not depend on this effect."
    assert disputed.endswith(f"on average over the runs, but the runs disagree. {concerns}")
    assert "worse" not in disputed and "may be due to chance" in because
    more = describe(score=2e-4)[0]
    assert "rises by 0.020 points" in more and more.endswith(f"it helps the model. {concerns}")
    kept = describe(score=2e-4, action="keep")[0]
    assert kept.endswith("it helps the model.")
    assert "expected held-out error would be the same" in describe(score=0.0)[0]
    assert describe(score=float("nan"))[0] == "Its effect is not known."


def test_the_effect_on_numbers_is_that_on_a_bounded_error():
    assert describe("regression")[0] == (
        "Without it, the bounded held-out error falls by 0.00020 "
        "(0 means exact, 1 means far off): it makes the model worse."
    )
    verified = describe("regression")[3]
    assert "the bounded held-out error rises by 0.000030, unlike" in verified


def test_the_runs_agree_or_not():
    assert "all runs agree" in describe()[1]
    assert "due to chance" in describe(harmful_in=2)[1]
    assert "one training run" in describe(learned_in=1)[1]
    assert describe(learned_in=0)[1].startswith("No recorded run included it")


def test_the_label_stands_against_the_prediction():
    assert describe()[2] == (
        "Its label is cat; models that were not trained on it predict dog (93\u00a0%) and assign its label "
        "a probability of 2\u00a0%. The label is wrong with probability 95\u00a0%, "
        "unless the classes overlap."
    )
    assert "not trained on it agree (93" in describe(prediction="cat")[2]
    value = describe(task="regression", label="3", prediction="5.1")[2]
    assert value.startswith("Its value is 3; models that were not trained on it predict 5.1.")


def test_retraining_agrees_or_not_or_was_not_done():
    found = describe()[3]
    assert "without it: the expected held-out error rises by 0.0030 points, unlike" in found
    assert "Not checked" in describe(verified=float("nan"))[3]


def test_amounts_have_two_digits():
    amounts = [format_amount(value) for value in (0, 0.5, -12.3, 1.23e-7)]
    assert amounts == ["0", "0.50", "12", "1.2e-7"]


def test_only_where_a_plan_helps_is_a_label_called_wrong_without_reserve():
    settled = Recommendation([], None, "nothing wrong", "No label is.")
    found = reason_sentences(ROW, make_info(recommendation=settled))
    label = next(sentence["text"] for sentence in found if sentence["about"] == "Label")
    assert label.endswith("The label is wrong with probability 95\u00a0%.")
