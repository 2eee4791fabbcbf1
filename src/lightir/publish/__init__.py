"""Static search: an index as files of any web host, which a script in the browser searches."""

from lightir.publish.site import Publication, publish_index

__all__ = ["Publication", "publish_index"]
