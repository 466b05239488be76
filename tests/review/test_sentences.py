"""Why an instance is in the list, in plain words."""

from dross.review.sentences import format_amount, reason_sentences


def test_why_is_answered_in_plain_words(page, shared_project):
    worst = int(shared_project.instances["harm_rank"].idxmin())
    why = page.get("/api/why", params={"id": worst}).json()
    text = " ".join(sentence["text"] for sentence in why["sentences"])
    assert "validation loss would fall" in text and "it makes the model worse" in text
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
}


def describe(task="classification", runs=4, measure="expected_error", **changed):
    classes = ["cat", "dog"] if task == "classification" else []
    about = {"task": task, "runs": runs, "classes": classes, "measure": measure}
    found = reason_sentences(ROW | changed, about)
    return [sentence["text"] for sentence in found]


def test_the_effect_has_a_direction_and_a_size():
    expected = "Without it, the models would be expected to get about 0.020\u00a0% fewer of the "
    assert describe()[0] == expected + "validation data wrong: it makes the model worse."
    more = describe(score=2e-4)[0]
    assert "% more of the validation data wrong" in more and more.endswith("it helps the model.")
    assert "expected validation error would be the same" in describe(score=0.0)[0]


def test_the_effect_on_numbers_is_that_on_a_bounded_error():
    expected = (
        "Without it, the mean bounded validation error (0 where exact, 1 where far off) would "
    )
    assert (
        describe("regression")[0] == expected + "fall by about 0.00020: it makes the model worse."
    )
    assert "its bounded validation error rose by 0.000030, unlike" in describe("regression")[3]


def test_a_project_of_an_earlier_version_speaks_of_the_loss():
    effect, _, _, verified = describe(measure=None)[:4]
    expected = "Without it, the mean validation loss would fall by about 0.00020: "
    assert effect == expected + "it makes the model worse."
    assert "its validation loss rose by 0.000030" in verified


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
    assert "its expected validation error rose by 0.0030\u00a0%, unlike the estimate" in found
    assert "Not checked" in describe(verified=float("nan"))[3]


def test_amounts_have_two_digits():
    amounts = [format_amount(value) for value in (0, 0.5, -12.3, 1.23e-7)]
    assert amounts == ["0", "0.50", "12", "1.2e-7"]
