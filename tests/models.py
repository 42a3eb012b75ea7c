from django.db import models


class Effect(models.Model):
    """What a job's body wrote into the database: one row per execution whose transaction was committed."""

    name = models.CharField(max_length=200, db_index=True)

    def __str__(self) -> str:
        return self.name
