package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// MaxDepth bounds the nesting of a document. The parser is recursive, and a Go program cannot
// recover from a stack overflow.
const MaxDepth = 64

const (
	// maxTokens bounds the number of tokens of a document, two for each item of a list: a token
	// takes many times its length in memory.
	maxTokens = 2*MaxValues + 5*MaxKeys
	// MaxKeys bounds the number of keys of a document: the parser takes quadratic time in the
	// length of a mapping.
	MaxKeys = 20_000
)

// readDocument parses the YAML document in data and returns its root. Errors are Faults.
func readDocument(data []byte) (ast.Node, error) {
	if len(data) > MaxSize {
		return nil, whole("is larger than %d bytes", MaxSize)
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if err := checkText(data); err != nil {
		return nil, err
	}
	if n := countTokens(data); n > maxTokens {
		return nil, whole("holds %d words and marks, more than %d", n, maxTokens)
	}
	tokens := lexer.Tokenize(string(data))
	if n := countKeys(tokens); n > MaxKeys {
		return nil, whole("holds %d keys, more than %d", n, MaxKeys)
	}
	if err := checkDepth(tokens); err != nil {
		return nil, err
	}
	file, err := parseTokens(tokens)
	if err != nil {
		return nil, err
	}

	var root ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.DirectiveType:
		case root != nil:
			return nil, at(doc.Body, "a second document starts here; one file holds one")
		default:
			root = doc.Body
		}
	}
	if root == nil || root.Type() == ast.NullType {
		return nil, whole("is empty")
	}
	return root, nil
}

// countTokens estimates the number of tokens before the lexer allocates any: words, and indicators
// that need no space around them. A quoted string is one token.
func countTokens(data []byte) int {
	n, quotes := 0, 0
	space := true
	for _, c := range data {
		switch c {
		case ' ', '\t', '\r', '\n':
			space = true
			continue
		case '"', '\'':
			quotes++
		case '[', ']', '{', '}', ',', '&', '*', '!', '#', '|', '>', '%', '?':
			n++
		default:
			if space {
				n++
			}
		}
		space = false
	}
	return n + (quotes+1)/2
}

// countKeys counts the tokens that indicate keys.
func countKeys(tokens token.Tokens) int {
	n := 0
	for _, tk := range tokens {
		if tk.Type == token.MappingValueType || tk.Type == token.MappingKeyType {
			n++
		}
	}
	return n
}

// parseTokens calls the parser and returns its panics as errors: the parser panics on some invalid
// documents.
func parseTokens(tokens token.Tokens) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = whole("is not readable as YAML: %v", r)
		}
	}()
	// The decoder reports all duplicate keys, the parser only the first.
	file, err = parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	var y yaml.Error
	if errors.As(err, &y) {
		message := "is not YAML: " + strings.Join(strings.Fields(y.GetMessage()), " ")
		if strings.Contains(y.GetMessage(), "'\t'") {
			message = "is not YAML: a line cannot begin with a tab; indent with spaces"
		}
		if tk := y.GetToken(); tk != nil && tk.Position != nil {
			return nil, Fault{Line: tk.Position.Line, Column: tk.Position.Column, Fault: faultOf("", message)}
		}
		return nil, whole("%s", message)
	}
	if err != nil {
		return nil, whole("is not YAML: %v", err)
	}
	return file, nil
}

// checkText refuses invalid UTF-8 and control characters.
func checkText(data []byte) error {
	line, column := 1, 1
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && size == 1:
			return Fault{Line: line, Column: column, Fault: faultOf("", fmt.Sprintf("byte %#x is not UTF-8 text", data[0]))}
		case r == '\n':
			line, column = line+1, 0
		case r < ' ' && r != '\t' && r != '\r', r == 0x7f:
			return Fault{Line: line, Column: column, Fault: faultOf("", fmt.Sprintf("control character %U", r))}
		}
		data = data[size:]
		column++
	}
	return nil
}

// checkDepth refuses a document that nests deeper than MaxDepth, from its tokens and before the
// parser recurses. The depth is the number of open brackets, plus consecutive indicators that each
// nest the next node, plus open indentations in block style.
func checkDepth(tokens token.Tokens) error {
	var (
		open    int   // brackets
		pending int   // indicators since the last scalar, comma or closing bracket
		indents []int // columns of the block collections that are open
	)
	for _, tk := range tokens {
		switch tk.Type {
		case token.MappingStartType, token.SequenceStartType:
			open++
		case token.MappingEndType, token.SequenceEndType:
			open--
			pending = 0
		case token.SequenceEntryType, token.MappingKeyType, token.MappingValueType, token.AnchorType, token.TagType,
			token.MergeKeyType:
			pending++
		case token.CommentType, token.SpaceType:
			continue
		case token.CollectEntryType:
			pending = 0
		default:
			if tk.Prev == nil || tk.Prev.Type != token.AnchorType {
				pending = 0
			}
		}
		if open <= 0 && tk.Position != nil {
			column := tk.Position.Column
			for len(indents) > 0 && indents[len(indents)-1] > column {
				indents = indents[:len(indents)-1]
			}
			if len(indents) == 0 || indents[len(indents)-1] < column {
				indents = append(indents, column)
			}
		}
		if open > MaxDepth || pending > MaxDepth || len(indents) > 2*MaxDepth {
			f := whole("nests deeper than %d levels", MaxDepth)
			if tk.Position != nil {
				f.Line, f.Column = tk.Position.Line, tk.Position.Column
			}
			return f
		}
	}
	return nil
}

func whole(format string, args ...any) Fault {
	return Fault{Fault: faultOf("", fmt.Sprintf(format, args...))}
}

func at(n ast.Node, format string, args ...any) Fault {
	f := whole(format, args...)
	if values := mapValues(n); len(values) > 0 {
		n = values[0].Key
	}
	if tk := n.GetToken(); tk != nil && tk.Position != nil {
		f.Line, f.Column = tk.Position.Line, tk.Position.Column
	}
	return f
}
