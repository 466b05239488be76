"""Clean images.

This tutorial cleans folders of images, one folder for each class. The images are 900 small digits,
5 % of them in the wrong folder; photographs work in the same way.
"""

# %% The folders
# `train/3/0017.png` is an image of class 3. Here, validation and test images are in separate
# folders. Without these folders, every image of `train` is evaluated by models that were not
# trained on it.
from pathlib import Path

import dross
from dross.demo import load_flipped_digits, write_images

digits = load_flipped_digits()
folders = write_images(digits, Path("digits"))
print({name: len(list(folder.rglob("*.png"))) for name, folder in folders.items()})
print(digits.flipped.sum(), "training images are in the wrong folder")

# %% Clean
# On the command line, use `dross clean digits/train --validation digits/validation --test
# digits/test`. These images are 8 by 8 pixels, so models are trained on pixels. For larger images,
# a pretrained model computes features if the extra `images` is installed. Labels of images are
# treated as annotated by default.
parts = {"validation": str(folders["validation"]), "test": str(folders["test"])}
project = dross.clean(folders["train"], out="runs/digits", progress=False, **parts)
print(project.recommended)

# %% How many were found?
table = project.table
places = table["source"].map(lambda source: int(Path(source).stem))
flipped = digits.flipped[places]
touched = (table["action"] != "keep").to_numpy()
print(
    f"The plan changes {touched.sum()}; "
    f"{(touched & flipped).sum()} of {flipped.sum()} flipped ones are among them."
)

# %% Why is this image on the list?
# `dross review runs/digits` shows the images. The same information is available in Python: the
# score of the image, the probability that its label is wrong, and the most similar images.
worst = int(table["score"].idxmin())
print(table.loc[worst, ["source", "label", "prediction", "score", "wrong", "action"]].to_string())
print("similar training images:", table.loc[project.why(worst).similar, "source"].tolist())

# %% Does it help?
verdict = dross.judge("runs/digits", quick=True, progress=False)
print(verdict.sentence)

# %% The cleaned copy
# The copy is again a folder of images; relabeled images are in the folder of their new class.
done = dross.export("runs/digits", "cleaned")
print(done.written, "images,", done.removed, "removed,", done.relabeled, "relabeled")
