package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tabane/tabane/internal/study/content"
)

// keys are the keys that Press supports, with their codes and the text that they enter.
var keys = map[string]struct {
	code    string
	virtual int
	text    string
}{
	"Enter": {"Enter", 13, "\r"}, "Tab": {"Tab", 9, ""}, "Escape": {"Escape", 27, ""}, "Backspace": {"Backspace", 8, ""}, "Delete": {"Delete", 46, ""},
	"ArrowLeft": {"ArrowLeft", 37, ""}, "ArrowUp": {"ArrowUp", 38, ""}, "ArrowRight": {"ArrowRight", 39, ""}, "ArrowDown": {"ArrowDown", 40, ""},
	"PageUp": {"PageUp", 33, ""}, "PageDown": {"PageDown", 34, ""}, "Home": {"Home", 36, ""}, "End": {"End", 35, ""}, " ": {"Space", 32, " "},
	"+": {"Equal", 187, "+"}, "-": {"Minus", 189, "-"},
}

// locateScript finds the point of an element to click on, which must be visible and not covered.
const locateScript = `(selector => {
	const all = document.querySelectorAll(selector);
	if (all.length === 0) return {error: 'matches no element'};
	const e = all[0];
	e.scrollIntoView({block: 'nearest', inline: 'nearest', behavior: 'instant'});
	const r = e.getBoundingClientRect(), x = r.left + r.width / 2, y = r.top + r.height / 2;
	if (r.width === 0 || r.height === 0) return {error: 'matches an element without size'};
	const hit = document.elementFromPoint(x, y);
	if (!hit || !(e.contains(hit) || hit.contains(e))) return {error: 'matches an element that is covered or outside of the view'};
	return {x, y};
})`

// locate returns the center of the first element that matches a CSS selector, after scrolling it
// into view.
func (p *Page) locate(ctx context.Context, selector string) (x, y float64, err error) {
	quoted, err := json.Marshal(selector)
	if err != nil {
		return 0, 0, err
	}
	var found struct {
		X, Y  float64
		Error string
	}
	if err := p.evaluate(ctx, locateScript+"("+string(quoted)+")", &found); err != nil {
		return 0, 0, err
	}
	if found.Error != "" {
		return 0, 0, fmt.Errorf("selector %s %s", quoted, found.Error)
	}
	return found.X, found.Y, nil
}

// Click clicks on the first element that matches a CSS selector.
func (p *Page) Click(ctx context.Context, selector string) error {
	x, y, err := p.locate(ctx, selector)
	if err != nil {
		return fmt.Errorf("click: %w", err)
	}
	for _, event := range []map[string]any{
		{"type": "mouseMoved"}, {"type": "mousePressed", "button": "left", "clickCount": 1}, {"type": "mouseReleased", "button": "left", "clickCount": 1},
	} {
		event["x"], event["y"] = x, y
		if err := p.call(ctx, "Input.dispatchMouseEvent", event, nil); err != nil {
			return fmt.Errorf("click: %w", err)
		}
	}
	return nil
}

// Scroll turns the mouse wheel over the first element that matches a CSS selector, by so many
// pixels.
func (p *Page) Scroll(ctx context.Context, selector string, dx, dy int) error {
	x, y, err := p.locate(ctx, selector)
	if err == nil {
		err = p.call(ctx, "Input.dispatchMouseEvent", map[string]any{"type": "mouseWheel", "x": x, "y": y, "deltaX": dx, "deltaY": dy}, nil)
	}
	if err != nil {
		return fmt.Errorf("scroll: %w", err)
	}
	return nil
}

// Focus moves the focus to the first element that matches a CSS selector, as the tabulator key
// does.
func (p *Page) Focus(ctx context.Context, selector string) error {
	if _, _, err := p.locate(ctx, selector); err != nil {
		return fmt.Errorf("focus: %w", err)
	}
	quoted, err := json.Marshal(selector)
	if err != nil {
		return fmt.Errorf("focus: %w", err)
	}
	var focused bool
	if err := p.evaluate(ctx, fmt.Sprintf("(e => { e.focus(); return document.activeElement === e; })(document.querySelector(%s))", quoted), &focused); err != nil {
		return fmt.Errorf("focus: %w", err)
	}
	if !focused {
		return fmt.Errorf("focus: selector %s matches an element that cannot have the focus", quoted)
	}
	return nil
}

// Type types a text into the element that has the focus, one key after the other.
func (p *Page) Type(ctx context.Context, text string) error {
	if !utf8.ValidString(text) {
		return fmt.Errorf("type %q: is not UTF-8", text)
	}
	for _, r := range text {
		if err := p.press(ctx, string(r), "", 0, string(r)); err != nil {
			return fmt.Errorf("type %q: %w", text, err)
		}
	}
	return nil
}

// Press presses a key, by its name as in KeyboardEvent.key.
func (p *Page) Press(ctx context.Context, key string) error {
	k, ok := keys[key]
	if !ok {
		return fmt.Errorf("press %q: must be one of %s", key, strings.Join(Keys(), ", "))
	}
	if err := p.press(ctx, key, k.code, k.virtual, k.text); err != nil {
		return fmt.Errorf("press %q: %w", key, err)
	}
	return nil
}

func (p *Page) press(ctx context.Context, key, code string, virtual int, text string) error {
	event := map[string]any{"type": "keyDown", "key": key, "code": code, "windowsVirtualKeyCode": virtual}
	if text != "" {
		event["text"] = text
	} else {
		event["type"] = "rawKeyDown"
	}
	if err := p.call(ctx, "Input.dispatchKeyEvent", event, nil); err != nil {
		return err
	}
	event["type"] = "keyUp"
	delete(event, "text")
	return p.call(ctx, "Input.dispatchKeyEvent", event, nil)
}

// Keys returns the names of the keys that Press supports, sorted.
func Keys() []string { return slices.Sorted(maps.Keys(keys)) }

// Perform does one action of a player.
func (p *Page) Perform(ctx context.Context, s content.Step) error {
	switch s.Action {
	case content.Click:
		return p.Click(ctx, s.Selector)
	case content.Type:
		if err := p.Click(ctx, s.Selector); err != nil {
			return err
		}
		return p.Type(ctx, s.Text)
	case content.Key:
		if err := p.Focus(ctx, s.Selector); err != nil {
			return err
		}
		return p.Press(ctx, s.Text)
	}
	return fmt.Errorf("BUG: unknown action %q", s.Action)
}
