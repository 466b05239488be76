"""Why an instance is in the list, in plain words."""

from dross.cleanse.findings import format_amount
from dross.review.sentences import reason_sentences


def test_why_is_answered_in_plain_words(page, shared_project):
    worst = int(shared_project.instances["harm_rank"].idxmin())
    why = page.get("/api/why", params={"id": worst}).json()
    text = " ".join(sentence["text"] for sentence in why["sentences"])
    assert "the validation loss falls by about" in text and "it makes the model worse" in text
    assert "of 4 training runs" in text and "trained again without it" in text
    assert "Its label is" in text and "more unusual than" in text
    assert len(why["hurts"]) == 4 and len(why["similar"]) == 4
    assert all(entry["label"] and entry["brief"] for entry in why["hurts"])
    for id in (10**6, "x"):
        assert page.get("/api/why", params={"id": id}).status_code == 400


ROW = {
    "score": -2e-4,
    "spread": 1e-5,
    "harmful_in": 4,
    "label": "cat",
    "prediction": "dog",
    "probability": 0.93,
    "agreement": 1.0,
    "label_probability": 0.02,
    "verified": 3e-5,
    "outlier": 0.5,
    "action": "relabel",
    "confidence": 0.91,
}


def describe(task="classification", runs=4, measure="expected_error", **changed):
    classes = ["cat", "dog"] if task == "classification" else []
    about = {"task": task, "runs": runs, "classes": classes, "measure": measure}
    found = reason_sentences(ROW | changed, about)
    assert found[0]["about"] == "Recommended"
    return [sentence["text"] for sentence in found[1:]]


def test_what_is_recommended_comes_first_with_its_own_confidence():
    about = {"task": "classification", "runs": 4, "classes": ["cat", "dog"]}
    first = lambda **changed: reason_sentences(ROW | changed, about)[0]["text"]
    assert first() == "Relabel it as dog: 91\u00a0% sure about this one alone."
    assert first(action="remove", confidence=0.5).startswith("Remove it: 50\u00a0% sure")
    assert first(confidence=float("nan")) == "Relabel it as dog. It is not known how sure that is."
    assert "does not touch it" in first(action="keep")


def test_the_effect_has_a_direction_and_a_size():
    expected = "Without it, about 0.020\u00a0% fewer mistakes on the validation part: "
    assert describe()[0] == expected + "it makes the model worse."
    more = describe(score=2e-4)[0]
    assert "% more mistakes" in more and more.endswith("it helps the model.")
    assert "number of mistakes would be the same" in describe(score=0.0)[0]


def test_the_effect_on_numbers_is_that_on_a_bounded_error():
    assert describe("regression")[0] == (
        "Without it, the bounded validation error falls by about 0.00020 "
        "(it is 0 where exact, 1 where far off): it makes the model worse."
    )
    verified = describe("regression")[3]
    assert "the bounded validation error rises by about 0.000030, unlike" in verified


def test_a_project_of_an_earlier_version_speaks_of_the_loss():
    effect, _, _, verified = describe(measure=None)[:4]
    expected = "Without it, the validation loss falls by about 0.00020: "
    assert effect == expected + "it makes the model worse."
    assert "the validation loss rises by about 0.000030" in verified


def test_the_runs_agree_or_not():
    assert "all runs agree" in describe()[1]
    assert "may be chance" in describe(harmful_in=2)[1]
    assert "one training run" in describe(runs=1)[1]


def test_the_label_stands_against_the_prediction():
    assert describe()[2].startswith("Its label is cat, but the models say dog with 93\u00a0%")
    assert "say so too" in describe(prediction="cat")[2]
    value = describe(task="regression", label="3", prediction="5.1")[2]
    assert value == "Its value is 3; the models predict 5.1."


def test_retraining_agrees_or_not_or_was_not_done():
    found = describe()[3]
    assert "without it: about 0.0030\u00a0% more mistakes, unlike the estimate" in found
    assert "Not checked" in describe(verified=float("nan"))[3]


def test_amounts_have_two_digits():
    amounts = [format_amount(value) for value in (0, 0.5, -12.3, 1.23e-7)]
    assert amounts == ["0", "0.50", "12", "1.2e-7"]
