"""The page of model families says what was measured."""

from tests.models.families import FAMILIES
from tests.models.measuring import Measured
from tests.models.page import PAGE, page


def measured(**members: object) -> Measured:
    result = Measured(masks={"image": ".2 E4 .2"}, cases=10, stock={"image": "engine died"})
    for name, value in members.items():
        setattr(result, name, value)
    return result


def test_row_has_mask_score_and_stock_pair() -> None:
    text = page({"gemma3": measured()})
    assert "| Gemma 3 | image | `.2 E4 .2` | 10 of 10 | engine died |" in text


def test_difference_is_counted_once_and_shown() -> None:
    failures = ["image, one: token_ids: 1, 2", "image, one: text: a, b"]
    text = page({"gemma3": measured(failures=failures)})
    assert "| 9 of 10 |" in text
    assert "- Gemma 3: image, one: token_ids: 1, 2" in text


def test_family_that_did_not_start_says_why() -> None:
    text = page({"gemma3": Measured(error="RuntimeError: no kernel")})
    assert "not run here, see below" in text
    assert "RuntimeError: no kernel" in text


def test_each_modality_has_a_row_and_long_masks_are_cut() -> None:
    mask = "." + "1 E4 ." * 20 + "1"
    text = page({"gemma4": measured(masks=dict.fromkeys(FAMILIES["gemma4"].modalities, mask))})
    assert text.count("E4 .1 ...`") + text.count("...`") >= 3
    assert "|  | video |" in text


def test_what_the_page_explains_is_what_would_be_written() -> None:
    explained, line, _ = page({}).partition("|---|")
    assert PAGE.read_text().startswith(explained + line)
