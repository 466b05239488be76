"""Labels of the validation and test parts that models which have not learnt them doubt."""
