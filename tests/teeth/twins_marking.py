"""Twins that lose what a token says about itself, or leave it behind when the token moves."""

from tiny import TinyAttention

from weft.layers.marks import check_shape


class MarkIgnored(TinyAttention):
    def mix(self, x, valid, context, context_valid, loud=None):
        return super().mix(x, valid, context, context_valid)

    def reference(self, x, valid=None, context=None, context_valid=None, loud=None):
        return super().reference(x, valid, context, context_valid)


class MarkInForwardAlone(TinyAttention):
    def reference(self, x, valid=None, context=None, context_valid=None, loud=None):
        return super().reference(x, valid, context, context_valid)


class MarkWithoutGradient(TinyAttention):
    def mix(self, x, valid, context, context_valid, loud=None):
        x = x if loud is None else x + (x * loud[..., None]).detach()
        return super().mix(x, valid, context, context_valid)


class MarkStaysBehind(TinyAttention):
    """Its tokens move to the front of their row, and their marks do not."""

    def forward(self, x, *, valid=None, loud=None, **options):
        self.left = loud
        y = super().forward(x, valid=valid, loud=loud, **options)
        self.left = None
        return y

    def mix(self, x, valid, context, context_valid, loud=None):
        return super().mix(x, valid, context, context_valid, loud=self.left)


class MarkOfAnyType(TinyAttention):
    def _check_marks(self, marks, x):
        for name, mark in marks.items():
            check_shape(name, mark, x.shape[:2])
