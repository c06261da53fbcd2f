package content

import (
	"fmt"
	"strconv"
	"strings"
)

// Language is a language of the services, as a tag of HTML.
type Language string

// The languages.
const (
	English  Language = "en"
	Japanese Language = "ja"
)

// Languages are all languages. The first one is the default.
func Languages() []Language { return []Language{English, Japanese} }

// maxAccepted bounds the header Accept-Language that is read, in bytes.
const maxAccepted = 256

// Preferred returns the language that a browser prefers by its header Accept-Language (RFC 9110,
// section 12.5.4): English if it prefers none.
func Preferred(header string) Language {
	best, language := 0.0, English
	header = header[:min(len(header), maxAccepted)]
	for part := range strings.SplitSeq(header, ",") {
		tag, weight, weighted := strings.Cut(strings.TrimSpace(part), ";")
		q := 1.0
		if weighted {
			text, ok := strings.CutPrefix(strings.TrimSpace(weight), "q=")
			v, err := strconv.ParseFloat(text, 64)
			if !ok || err != nil || !(v >= 0 && v <= 1) {
				continue
			}
			q = v
		}
		primary, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(tag)), "-")
		if l := Language(primary); (l == English || l == Japanese) && q > best {
			best, language = q, l
		}
	}
	return language
}

// In returns the same world in a language: documents and tasks are in it, and everything else is
// equal. The default is English.
func (w *World) In(l Language) *World {
	other := *w
	other.language = l
	return &other
}

// text is a text in each language. Scripts replace {name} by a value.
type text struct{ en, ja string }

func (t text) in(l Language) string {
	if l == Japanese {
		return t.ja
	}
	return t.en
}

// in returns all texts of a language by their keys.
func in(l Language) map[string]string {
	all := map[string]string{}
	for key, t := range texts {
		all[key] = t.in(l)
	}
	return all
}

// Condition returns a condition for people.
func (l Language) Condition(key, value string) string {
	if key == "price" {
		value = grouped(value)
	} else {
		value = texts[value].in(l)
	}
	return fmt.Sprintf(conditions[key].in(l), value)
}

// grouped returns a decimal number with a comma between thousands, as the scripts print prices.
func grouped(number string) string {
	for i := len(number) - 3; i > 0; i -= 3 {
		number = number[:i] + "," + number[i:]
	}
	return number
}

// conditions are the formats of conditions, by their keys.
var conditions = map[string]text{
	"kind":     {"Kind: %s", "種類：%s"},
	"district": {"District: %s", "地区：%s"},
	"feature":  {"Feature: %s", "特徴：%s"},
	"category": {"Category: %s", "分類：%s"},
	"color":    {"Color: %s", "色：%s"},
	"price":    {"Price: at most %s yen", "価格：%s 円以下"},
}

// texts are the texts of the pages, and the words for what is in the world, by the values that it
// has.
var texts = map[string]text{
	"loading": {"Loading", "読み込み中"}, "name": {"{name} {kind}", "{name} {kind}"}, "rating": {"Rating", "評価"}, "ofFive": {"{n} of 5", "5 点満点中 {n} 点"},
	"photo": {"{name}, photo {n}", "{name}、写真 {n}"}, "isOpen": {"{name} is open", "{name}を開きました"},
	"failed":    {"That did not work: {reason}", "うまくいきませんでした：{reason}"},
	"notLoaded": {"an image did not load: {path}", "画像を読み込めませんでした：{path}"}, "refused": {"the server responds {status} to {path}", "サーバーの応答：{status}（{path}）"},

	"map": {"Map", "地図"}, "mapScript": {"This map needs JavaScript.", "この地図には JavaScript が必要です。"}, "mapView": {"Map view", "地図の表示"},
	"moveAndZoom": {"Move and zoom", "移動と拡大・縮小"}, "zoomIn": {"Zoom in", "拡大"}, "zoomOut": {"Zoom out", "縮小"},
	"west": {"West", "西へ"}, "east": {"East", "東へ"}, "north": {"North", "北へ"}, "south": {"South", "南へ"},
	"mapKeys": {
		"Map: arrow keys move it, plus and minus zoom. The places in view are in the list that follows.",
		"地図：矢印キーで移動、プラスとマイナスで拡大・縮小。表示中の場所は後の一覧にあります。",
	},
	"places": {"Places", "場所"}, "choose": {"Choose this place", "この場所を選ぶ"}, "favorites": {"Best rated here", "この範囲で評価の高い場所"},
	"placesInView": {"Places in view", "表示中の場所"}, "symbols": {"Symbols", "記号"}, "overview": {"Overview of the whole map", "地図全体"},
	"view": {"Places in view: {n}. Zoom level {zoom}.", "表示中の場所：{n} 件、ズーム {zoom}"}, "placeIn": {"{place}, {district}", "{place}、{district}"},
	"kind": {"Kind", "種類"}, "district": {"District", "地区"}, "features": {"Features", "特徴"}, "comma": {", ", "、"},
	"wayTo": {"{name}: your way there", "{name}への行き方"}, "turn": {"Way to {name}, turn {n}", "{name}への行き方、曲がり角 {n}"}, "chosen": {"You have chosen {name}", "{name}を選びました"},

	"shop": {"Shop", "ショップ"}, "shopScript": {"This shop needs JavaScript.", "このショップには JavaScript が必要です。"}, "find": {"Find", "探す"},
	"searchFor": {"Search for", "検索語"}, "search": {"Search", "検索"}, "color": {"Color", "色"}, "any": {"any", "指定なし"}, "price": {"Price", "価格"},
	"upTo": {"up to {n} yen", "{n} 円以下"}, "categories": {"Categories", "分類"}, "category": {"Category", "分類"}, "cart": {"Cart", "カート"}, "empty": {"Empty", "空です"},
	"add": {"Add to cart", "カートに入れる"}, "popular": {"Popular", "人気の商品"}, "more": {"Show more", "もっと見る"}, "others": {"Others looked at", "ほかの人が見た商品"},
	"yen": {"{n}\u00a0yen", "{n}\u00a0円"}, "itemFor": {"{item}, {color}, {price}", "{item}、{color}、{price}"}, "inCartFor": {"{item}, {price}", "{item}、{price}"},
	"items": {"Items: {n}", "商品：{n} 件"}, "results": {"Results: {n}", "検索結果：{n} 件"}, "inCart": {"{name} is in the cart", "{name}をカートに入れました"},

	"cafe": {"cafe", "カフェ"}, "hotel": {"hotel", "ホテル"}, "museum": {"museum", "博物館"}, "pharmacy": {"pharmacy", "薬局"}, "restaurant": {"restaurant", "レストラン"},
	"free wifi": {"free wifi", "無料 Wi-Fi"}, "garden": {"garden", "庭園"}, "open at night": {"open at night", "夜間営業"}, "parking": {"parking", "駐車場"},
	"pets welcome": {"pets welcome", "ペット可"}, "step-free entrance": {"step-free entrance", "段差のない入口"},
	"Aoba": {"Aoba", "青葉"}, "Chuo": {"Chuo", "中央"}, "Fuji": {"Fuji", "富士"}, "Hama": {"Hama", "浜"}, "Izumi": {"Izumi", "泉"}, "Kita": {"Kita", "北"},
	"Midori": {"Midori", "緑"}, "Minami": {"Minami", "南"}, "Naka": {"Naka", "中"}, "Nishi": {"Nishi", "西"}, "Oka": {"Oka", "丘"}, "Sakae": {"Sakae", "栄"},
	"Shiro": {"Shiro", "城"}, "Tani": {"Tani", "谷"}, "Ura": {"Ura", "浦"}, "Yama": {"Yama", "山"},
	"backpack": {"backpack", "リュックサック"}, "blanket": {"blanket", "毛布"}, "chair": {"chair", "椅子"}, "clock": {"clock", "時計"},
	"kettle": {"kettle", "やかん"}, "lamp": {"lamp", "ランプ"}, "mug": {"mug", "マグカップ"}, "umbrella": {"umbrella", "傘"},
	"black": {"black", "黒"}, "blue": {"blue", "青"}, "green": {"green", "緑"}, "red": {"red", "赤"}, "white": {"white", "白"}, "yellow": {"yellow", "黄"},
}
