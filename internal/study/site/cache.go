package site

import (
	"container/list"
	"fmt"
	"hash/crc64"
	"sync"

	"github.com/tabane/tabane/internal/study/content"
)

// cache keeps the images that were drawn last. It is safe for concurrent use.
type cache struct {
	limit int

	mu     sync.Mutex
	images map[string]*list.Element // of *image, by path
	recent list.List                // most recently used first
	size   int
	drawn  uint64
}

// image is an image that is drawn by the first goroutine that needs it.
type image struct {
	path string
	size int
	draw func() rendered
}

// newCache returns a cache of images of limit bytes in total.
func newCache(limit int) *cache { return &cache{limit: limit, images: map[string]*list.Element{}} }

// rendered returns an image, which the caller must not change.
func (c *cache) rendered(path string, r content.Resource) rendered { return c.find(path, r).draw() }

// find returns the image of a path, and makes room for it.
func (c *cache) find(path string, r content.Resource) *image {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.images[path]; ok {
		c.recent.MoveToFront(e)
		return e.Value.(*image)
	}
	i := &image{path, r.Size, sync.OnceValue(func() rendered { return newContent(r) })}
	c.images[path] = c.recent.PushFront(i)
	c.size += r.Size
	c.drawn++
	for c.size > c.limit && c.recent.Len() > 1 {
		old := c.recent.Remove(c.recent.Back()).(*image)
		delete(c.images, old.path)
		c.size -= old.size
	}
	return i
}

// rendered is a body with its entity tag.
type rendered struct {
	body []byte
	tag  string
}

var checksum = crc64.MakeTable(crc64.ECMA)

// newContent makes the body of a resource.
func newContent(r content.Resource) rendered {
	body := r.Body()
	return rendered{body, fmt.Sprintf(`"%016x"`, crc64.Checksum(body, checksum))}
}

// Images are the counters of the images that are kept.
type Images struct {
	// Kept is their number and Bytes their length.
	Kept  int `json:"kept"`
	Bytes int `json:"bytes"`
	// Drawn counts the images that were drawn.
	Drawn uint64 `json:"drawn"`
}

func (c *cache) status() Images {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Images{c.recent.Len(), c.size, c.drawn}
}
