package gateway

import (
	"encoding"
	"reflect"
	"strings"
	"testing"
	"time"
)

// texts are values of types that are read from text: each has one of them.
var texts = []string{"20Mbit/s", "udp", "ef", "0x10", "20ms", "10.9.0.0/16", "192.0.2.9", "[2001:db8::9]:4790", "hq.example:1", "x"}

// change gives a value another one.
func change(t *testing.T, key string, v reflect.Value) {
	t.Helper()
	before := reflect.ValueOf(v.Interface())
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		for _, text := range texts {
			if u.UnmarshalText([]byte(text)) == nil && !reflect.DeepEqual(before.Interface(), v.Interface()) {
				return
			}
		}
	}
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		v.SetInt(v.Int() + int64(time.Second))
	case v.Kind() == reflect.Bool:
		v.SetBool(!v.Bool())
	case v.CanInt():
		v.SetInt(v.Int() + 1)
	case v.CanUint():
		v.SetUint(v.Uint() + 1)
	case v.Kind() == reflect.String:
		v.SetString(v.String() + "x")
	case v.Kind() == reflect.Slice:
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	default:
		t.Fatalf("%s: no other value of %v is known here", key, v.Type())
	}
}

// keyed reports whether a type is a section with keys of its own.
func keyed(typ reflect.Type) bool {
	if typ.Kind() != reflect.Struct {
		return false
	}
	for i := range typ.NumField() {
		if typ.Field(i).Tag.Get("yaml") != "" {
			return true
		}
	}
	return false
}

// eachKey calls do with a copy of the section for each key, whose value there is to be changed.
func eachKey(c *Config, do func(key string, now *Config, v reflect.Value)) {
	var walk func(key string, at func(*Config) reflect.Value)
	walk = func(key string, at func(*Config) reflect.Value) {
		for i, typ := 0, at(c).Type(); i < typ.NumField(); i++ {
			field := typ.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			path := strings.TrimPrefix(key+"."+name, ".")
			inner := func(c *Config) reflect.Value { return at(c).Field(i) }
			switch {
			case keyed(field.Type):
				walk(path, inner)
			case field.Type.Kind() == reflect.Slice && keyed(field.Type.Elem()):
				walk(path, func(c *Config) reflect.Value { return inner(c).Index(0) })
			default:
				now := sample()
				do(path, &now, inner(&now))
			}
		}
	}
	walk("", func(c *Config) reflect.Value { return reflect.ValueOf(c).Elem() })
}

// sample has an element of each list.
func sample() Config {
	return Config{Paths: []Path{{Name: "fiber"}}, Peers: []Peer{{Name: "hq"}}, Leaders: []Leader{{Name: "phone"}}, Policy: []Rule{{}}}
}

// TestEveryKeyReloads: a reload says of every key that is changed that it is applied, or that it
// needs a restart.
func TestEveryKeyReloads(t *testing.T) {
	old := sample()
	g := &Gateway{config: old}
	n := 0
	eachKey(&old, func(key string, now *Config, v reflect.Value) {
		n++
		change(t, key, v)
		faults, lines := g.checkFixed(now, keys{}), differences(&old, now)
		if len(faults) == 0 && len(lines) == 0 {
			t.Errorf("%s: no changes", key)
		}
		if len(faults) > 0 && len(lines) > 0 && !strings.HasPrefix(key, "peers") {
			t.Errorf("%s: both applied and not: %v, %v", key, lines, faults)
		}
		listed := 0
		for _, r := range reloadables {
			if key == r.key || strings.HasPrefix(key, r.key+".") {
				listed++
			}
		}
		if listed == 0 {
			t.Errorf("%s is missing in reloadables", key)
		}
	})
	if n < 40 {
		t.Errorf("only %d keys", n)
	}
	if lines := differences(&old, &old); len(lines) > 0 {
		t.Errorf("no change: %v", lines)
	}
	other := sample()
	other.Listen, other.Tunnel.Interface = old.Port(), old.tunnelName()
	if faults, lines := g.checkFixed(&other, keys{}), differences(&old, &other); len(faults)+len(lines) > 0 {
		t.Errorf("defaults: %v, %v", faults, lines)
	}
}
